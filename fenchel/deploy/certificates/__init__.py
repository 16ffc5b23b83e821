"""Certificates: an authority of one's own, and what it signs for the server and for each client.

Keys are on the curve P-256 and signatures use SHA-256. The layout that
:func:`fenchel.deploy.certificates.making.make_all` writes::

    folder/authority/   authority.pem  authority-key.pem            stays where it was made
                        issued.jsonl: what it signed; revoked.pem: what of that counts no more
    folder/server/      authority.pem  certificate.pem  key.pem     goes to the server
    folder/<client>/    authority.pem  certificate.pem  key.pem     goes to that client

Whoever has ``authority-key.pem`` can make a certificate of any name, so it is in no other folder.
"""
