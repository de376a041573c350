"""Federations without a server over Zenoh: peers that know each other by certificates.

`certificates` makes and reads keys, `locked` is the configuration of a session that lets neighbours alone
speak, `parcels` cuts messages into pieces and puts them together, `words` is what nodes tell each other
beside the method's messages, `mailbox` is what has come, `link` is a session in use, and `node` carries a
`Peer` through its rounds.
"""
