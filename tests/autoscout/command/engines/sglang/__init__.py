"""Stands for SGLang: a server that answers after a while, and its load tool; faster the more requests run at once."""
