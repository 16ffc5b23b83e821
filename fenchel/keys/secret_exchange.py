"""Client side of the secret exchange, which gives all clients the same secrets without revealing them to the server.

1. Each client offers an X25519 public key, signed with the key of its certificate.
2. One client, the designated one, checks the offers, makes the secrets, and seals them for each of the others in a box
   that it signs.
3. Each of the others checks the signature of its box, opens it, and keeps the secrets.

The server relays the messages (:mod:`fenchel.server.membership.secret_exchange`). Every signature names the run, so
messages of another run are refused. A client writes its X25519 key and the secrets to disk before it replies. After a
crash at any moment, the designated client therefore seals the same secrets again, and the others open their boxes with
the key that they offered. HyFDCA's papers leave the distribution of keys open (docs/specifications/hyfdca.md, section
2.2, S0).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fenchel.common.arrays import Array
from fenchel.common.crypto.public_key import Implementation
from fenchel.common.errors import CheckpointError, CredentialError, LostStateError, StorageError
from fenchel.common.storage.store import write_private
from fenchel.common.wire.phases import ACCEPT, BOX, OFFER, OFFERED, SEAL
from fenchel.common.wire.schema import check
from fenchel.common.wire.values import Value, Values
from fenchel.keys.identity import Identity, statement
from fenchel.keys.sealing import seal, unseal
from fenchel.keys.shared import Secrets

_KEY = "exchange.key"
_SECRETS = "clients.secret"


class SecretExchange:
    """One client's side of the secret exchange of a run.

    Parameters
    ----------
    run
        Id of the run.
    identity
        Certificate and key of this client.
    bits
        Length of the Paillier key in bits. Secrets with a key of another length are refused.
    designated
        Id of the client that makes the secrets; ``None`` lets the server choose.
    peers
        Clients with which secrets may be shared; ``None`` allows every client of the authority.
    folder
        Folder of the X25519 key and the secrets, readable by their owner only; ``None`` keeps them in memory.
    implementation
        Implementation that makes the Paillier key.
    """

    def __init__(
        self,
        run: str,
        identity: Identity,
        bits: int,
        *,
        designated: str | None = None,
        peers: Collection[str] | None = None,
        folder: Path | None = None,
        implementation: Implementation = "fenchel",
    ) -> None:
        self._run = run
        self._identity = identity
        self._bits = bits
        self._implementation = implementation
        self._designated = designated
        self._peers = peers
        self._folder = folder
        self._key = _kept_key(folder)
        self.secrets: Secrets | None = None
        """Secrets of the run; ``None`` until this client has them."""
        if folder is not None and (folder / _SECRETS).exists():
            self.secrets = Secrets.load(folder / _SECRETS)

    def answer(self, phase: str, values: Values) -> Values:
        """Return the reply to a phase of :data:`fenchel.common.wire.phases.EXCHANGE`.

        Raises
        ------
        CredentialError
            If a client, certificate, signature or box is not accepted.
        LostStateError
            If the box for this client belongs to a key that the client no longer has.
        """
        if phase == OFFER:
            check(values, {}, source=_source(phase))
            return self._offer()
        if phase == SEAL:
            return self._seal(values)
        return self._accept(values)

    def forget(self) -> None:
        """Remove the files of the secret exchange, once the run is complete."""
        if self._folder is not None:
            _remove(self._folder / _KEY)
            _remove(self._folder / _SECRETS)

    def _offer(self) -> Values:
        if self._key is None:
            self._key = X25519PrivateKey.generate()
            if self._folder is not None:
                write_private(self._folder / _KEY, self._key.private_bytes_raw())
        public = self._key.public_key().public_bytes_raw()
        signature = self._identity.sign(self._offered(self._identity.name, public))
        return {"public_key": _array(public), "certificate": self._identity.certificate, "signature": _array(signature)}

    def _seal(self, values: Values) -> Values:
        own = self._identity
        if self._designated not in (None, own.name):
            raise CredentialError(
                f"the server requests the secrets from {own.name}, but secrets.designated is {self._designated}, so "
                "nothing is sent. The server does not follow its own settings; ask its operator why before you start "
                "again"
            )
        recipients = {client: self._checked_offer(client, offer) for client, offer in _by_client(values).items()}
        if self.secrets is None:
            self._keep(Secrets.generate(self._bits, self._implementation))
        assert self.secrets is not None
        message = self.secrets.to_text().encode()
        reply: dict[str, Value] = {"certificate": own.certificate, "fingerprint": self._fingerprint()}
        for client, public in recipients.items():
            box = seal(message, public, self._context(own.name, client))
            reply[f"{client}/box"] = _array(box)
            reply[f"{client}/signature"] = _array(own.sign(self._sealed(own.name, client, public, box)))
        return reply

    def _checked_offer(self, client: str, offer: Values) -> bytes:
        check(offer, OFFERED, source=f"{_source(SEAL)}, offer of {client}")
        self._check_peer(client)
        public = _bytes(offer["public_key"])
        signed = self._offered(client, public)
        self._identity.check(client, str(offer["certificate"]), signed, _bytes(offer["signature"]))
        return public

    def _accept(self, values: Values) -> Values:
        check(values, {"sender": str, "certificate": str, **BOX}, source=_source(ACCEPT))
        own, sender, box = self._identity.name, str(values["sender"]), _bytes(values["box"])
        if self.secrets is not None:  # the server repeats the instruction if it has lost the reply
            return {"fingerprint": self._fingerprint()}
        if self._designated not in (None, sender):
            raise CredentialError(
                f"the secrets for {own} come from {sender}, but secrets.designated is {self._designated}, so {own} "
                "does not use them. The server does not follow its own settings; ask its operator why before you "
                "start again"
            )
        self._check_peer(sender)
        if self._key is None:
            place = "its memory" if self._folder is None else "its folder of this run, below --state"
            raise LostStateError(
                f"client {own} no longer has the key that it offered for this run, because {_KEY} is missing in "
                f"{place}; start the run again"
            )
        public = self._key.public_key().public_bytes_raw()
        signed = self._sealed(sender, own, public, box)
        self._identity.check(sender, str(values["certificate"]), signed, _bytes(values["signature"]))
        opened = unseal(box, self._key, self._context(sender, own))
        secrets = Secrets.from_text(opened, f"the secrets that {sender} sealed for {own}")
        # The server may have given the sender other settings, with a key that it can break.
        if (bits := secrets.private_key.public.bits) != self._bits:
            raise CredentialError(
                f"the secrets that {sender} sealed for {own} have a key of {bits} bits, but the settings that {own} "
                f"received need {self._bits}, so {own} does not use them. The server gave the two clients different "
                "settings; ask its operator why before you start again"
            )
        self._keep(secrets)
        return {"fingerprint": self._fingerprint()}

    def _check_peer(self, client: str) -> None:
        if self._peers is not None and client not in self._peers:
            raise CredentialError(
                f"client {self._identity.name} may not share secrets with {client}; if that client belongs to the "
                f"federation, start {self._identity.name} with --peer {client} as well"
            )

    def _keep(self, secrets: Secrets) -> None:
        """Keep the secrets, on disk before the reply, and remove the X25519 key, which has no further use."""
        if self._folder is not None:
            write_private(self._folder / _SECRETS, secrets.to_text().encode())
            _remove(self._folder / _KEY)
        self._key = None
        self.secrets = secrets

    def _fingerprint(self) -> str:
        assert self.secrets is not None
        return self.secrets.fingerprint

    # Signed statements, and the context of a sealed box

    def _offered(self, client: str, public: bytes) -> bytes:
        return statement("offer", self._run, client, public)

    def _sealed(self, sender: str, recipient: str, public: bytes, box: bytes) -> bytes:
        return statement("box", self._run, sender, recipient, public, box)

    def _context(self, sender: str, recipient: str) -> bytes:
        return statement("secrets", self._run, sender, recipient)


def _by_client(values: Values) -> Mapping[str, dict[str, Value]]:
    """Group values named ``CLIENT/NAME`` by client."""
    found: dict[str, dict[str, Value]] = {}
    for name, value in values.items():
        client, _, item = name.rpartition("/")
        found.setdefault(client, {})[item] = value
    return found


def _source(phase: str) -> str:
    return f"phase {phase!r}"


def _array(content: bytes) -> Array:
    return np.frombuffer(content, np.uint8)


def _bytes(value: Value) -> bytes:
    assert isinstance(value, np.ndarray)
    return value.tobytes()


def _kept_key(folder: Path | None) -> X25519PrivateKey | None:
    if folder is None or not (folder / _KEY).exists():
        return None
    try:
        return X25519PrivateKey.from_private_bytes((folder / _KEY).read_bytes())
    except ValueError:
        raise CheckpointError(
            "the file is not an X25519 key of 32 bytes, so it is damaged; start the run again", source=folder / _KEY
        ) from None


def _remove(path: Path) -> None:
    """Remove a file if it exists. A read-only folder without the file causes no error."""
    if not path.exists():
        return
    try:
        path.unlink()
    except OSError as error:
        raise StorageError(
            f"the key cannot be removed ({error.strerror}), although it is no longer needed; make the folder "
            "writable, and remove the file",
            source=path,
        ) from None
