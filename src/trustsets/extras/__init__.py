"""Bridges to optional dependencies, one file each; nothing else imports them."""
