"""Certificate authority of a federation, and certificates of the server and of each client.

Keys are on the curve P-256 and signatures use SHA-256. The layout that
:func:`fenchel.deploy.certificates.making.make_all` writes::

    folder/authority/   authority.pem  authority-key.pem            stays where it was made
                        issued.jsonl: issued certificates; revoked.pem: revoked ones
    folder/server/      authority.pem  certificate.pem  key.pem     goes to the server
    folder/<client>/    authority.pem  certificate.pem  key.pem     goes to that client

The owner of ``authority-key.pem`` can make a certificate for any name, so the key is in no other folder.
"""
