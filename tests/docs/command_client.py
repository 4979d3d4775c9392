"""`jetflock ARGS...` or `python FILE` by way of the command server: imports next to nothing."""

import json
import os
import socket
import sys

with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(os.environ["COMMAND_SERVER"])
    name = os.path.basename(sys.argv[0])
    message = {
        "argv": [name, *sys.argv[1:]],
        "folder": os.getcwd(),
        "environ": {key: value for key, value in os.environ.items() if key != "COMMAND_SERVER"},
    }
    socket.send_fds(connection, [json.dumps(message).encode()], [0, 1, 2])
    status = connection.recv(1)
sys.exit(status[0] if status else 1)
