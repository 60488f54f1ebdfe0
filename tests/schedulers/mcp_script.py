"""Run in the environment of MCP: a client starts the server as a user's does, lists its tools, and calls some.

python mcp_script.py CALLS ARGUMENT…
`CALLS` is JSON: a list of [tool, arguments]. The rest are arguments of the server. Prints the outcome as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from mcp import Client, StdioServerParameters


async def ask(calls: list[tuple[str, dict[str, Any]]], arguments: list[str]) -> dict[str, Any]:
    server = StdioServerParameters(
        command=sys.executable, args=["-m", "cdcflow_mcp.server", *arguments], env=dict(os.environ)
    )
    async with Client(server) as client:
        tools = (await client.list_tools()).tools
        found: dict[str, Any] = {
            "tools": sorted(tool.name for tool in tools),
            "read_only": all(tool.annotations is not None and tool.annotations.read_only_hint for tool in tools),
            "answers": [],
        }
        for name, given in calls:
            result = await client.call_tool(name, given)
            texts = [part.text for part in result.content if part.type == "text"]
            found["answers"].append({"is_error": bool(result.is_error), "text": "".join(texts)})
    return found


if __name__ == "__main__":
    outcome = asyncio.run(ask(json.loads(sys.argv[1]), sys.argv[2:]))
    sys.stdout.write("RESULT " + json.dumps(outcome) + "\n")
