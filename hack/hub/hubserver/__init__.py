"""A local server that speaks the part of the Hugging Face Hub's HTTP API that downloads use.

    GET       /api/models/{repo}/revision/{revision}
    GET       /api/models/{repo}/tree/{revision}[/{path}]?recursive=…   pages by Link header
    GET HEAD  /{repo}/resolve/{revision}/{path}     the bytes, with Range; or for LFS files
                                                    a redirect to the storage, if that is apart
    GET HEAD  /storage/{sha256}                     LFS bytes, with Range, on another port

It serves folders as repositories at fixed commits, with the standard library alone. Tests import
it and inject faults; the demo runs `python -m hubserver`.
"""

from hubserver.faults import Fault, FaultKind
from hubserver.repository import Repository, load_repository
from hubserver.server import HubServer, SeenRequest

__all__ = ["Fault", "FaultKind", "HubServer", "Repository", "SeenRequest", "load_repository"]
