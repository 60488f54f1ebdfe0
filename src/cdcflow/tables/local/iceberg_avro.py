"""Read and write manifests of Iceberg tables, and lists of them, in Avro as PyIceberg does.

    a file's schema ──▶ its reader, or writer ──▶ entries

PyIceberg creates a reader or writer for each file, which takes longer than the few entries of a small commit. Neither
has a state, so this module uses those of an earlier file with the same schema again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from typing import Any

from pyiceberg.avro.codecs import AVRO_CODEC_KEY, CODEC_MAPPING_ICEBERG_TO_AVRO
from pyiceberg.avro.decoder import new_decoder
from pyiceberg.avro.file import MAGIC, META_SCHEMA, SYNC_SIZE, AvroFile, AvroFileHeader, AvroOutputFile
from pyiceberg.avro.reader import Reader
from pyiceberg.avro.resolver import construct_writer, resolve_reader, resolve_writer
from pyiceberg.avro.writer import Writer
from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.manifest import (
    DEFAULT_READ_VERSION,
    MANIFEST_ENTRY_SCHEMAS,
    MANIFEST_LIST_FILE_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestListWriterV2,
    ManifestWriterV2,
    PartitionFieldSummary,
    _inherit_from_manifest,
    data_file_with_partition,
    manifest_entry_schema_with_data_file,
)
from pyiceberg.schema import Schema
from pyiceberg.types import StructType
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

SCHEMAS_MAX = 256
"""How many schemas are kept. There is one for each version of a table's partitions, and for each program that writes.
"""

_SCHEMA, _ENTRY, _LISTED = "avro.schema", "manifest_entry", "manifest_file"


def read_list(location: str, io: FileIO) -> Sequence[ManifestFile]:
    """Return the manifests in a list."""
    with _ReadFile(io.new_input(location), _list_reader) as found:
        return tuple(found)


def read_living(manifest: ManifestFile, io: FileIO) -> Sequence[ManifestEntry]:
    """Return the entries of a manifest that do not remove a file."""
    with _ReadFile(io.new_input(manifest.manifest_path), _entry_reader) as found:
        entries = [_inherit_from_manifest(entry, manifest) for entry in found]
    return [entry for entry in entries if entry.status != ManifestEntryStatus.DELETED]


class _ReadFile(AvroFile[Any]):
    def __init__(self, file: InputFile, reader_of: Callable[[str], Reader]) -> None:
        super().__init__(file)
        self._reader_of = reader_of

    def __enter__(self) -> _ReadFile:
        with self.input_file.open() as opened:
            self.decoder = new_decoder(opened.read())
        self.header = self._read_header()
        self.reader = self._reader_of(self.header.meta[_SCHEMA])
        return self


@lru_cache(SCHEMAS_MAX)
def _list_reader(schema: str) -> Reader:
    types = {-1: ManifestFile, 508: PartitionFieldSummary}
    return _reader(schema, MANIFEST_LIST_FILE_SCHEMAS[DEFAULT_READ_VERSION], types, {517: ManifestContent})


@lru_cache(SCHEMAS_MAX)
def _entry_reader(schema: str) -> Reader:
    enums = {0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent}
    return _reader(schema, MANIFEST_ENTRY_SCHEMAS[DEFAULT_READ_VERSION], {-1: ManifestEntry, 2: DataFile}, enums)


def _reader(schema: str, wanted: Schema, types: Mapping[int, Any], enums: Mapping[int, Callable[..., Enum]]) -> Reader:
    return resolve_reader(AvroSchemaConversion().avro_to_iceberg(json.loads(schema)), wanted, dict(types), dict(enums))


class ManifestWriter(ManifestWriterV2):
    """Writes a manifest of data files."""

    def new_writer(self) -> AvroOutputFile[ManifestEntry]:
        return _WrittenFile(self._output_file, self._meta, *_entry_writer(self._spec.partition_type(self._schema)))


class DeleteManifestWriter(ManifestWriter):
    """Writes a manifest of delete files."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class ManifestListWriter(ManifestListWriterV2):
    """Writes the list of a snapshot's manifests."""

    def __enter__(self) -> ManifestListWriter:
        self._writer = _WrittenFile(self._output_file, self._meta, *_list_writer())
        self._writer.__enter__()
        return self


class _WrittenFile(AvroOutputFile[Any]):
    def __init__(self, file: OutputFile, metadata: dict[str, str], writer: Writer, schema: str) -> None:
        """Use a writer that exists already, which the base class would create again. `schema`: as Avro's JSON."""
        self.output_file = file
        self.metadata = metadata
        self.sync_bytes = os.urandom(SYNC_SIZE)
        self.writer, self._schema_text = writer, schema

    def _write_header(self) -> None:
        codec = self.metadata[AVRO_CODEC_KEY]
        meta = {
            **self.metadata,
            _SCHEMA: self._schema_text,
            AVRO_CODEC_KEY: CODEC_MAPPING_ICEBERG_TO_AVRO.get(codec) or codec,
        }
        _HEADER_WRITER.write(self.encoder, AvroFileHeader(MAGIC, meta, self.sync_bytes))


_HEADER_WRITER = construct_writer(META_SCHEMA)


@lru_cache(1)
def _list_writer() -> tuple[Writer, str]:
    """Return the writer of lists of manifests, and their schema as Avro's JSON."""
    given, written = (MANIFEST_LIST_FILE_SCHEMAS[version] for version in (DEFAULT_READ_VERSION, 2))
    text = json.dumps(AvroSchemaConversion().iceberg_to_avro(written, schema_name=_LISTED))
    return resolve_writer(record_schema=given, file_schema=written), text


@lru_cache(SCHEMAS_MAX)
def _entry_writer(partition: StructType) -> tuple[Writer, str]:
    """Return the writer of a manifest's entries, and their schema as Avro's JSON."""
    written, given = (
        manifest_entry_schema_with_data_file(
            version, data_file_with_partition(format_version=version, partition_type=partition)
        )
        for version in (2, DEFAULT_READ_VERSION)
    )
    text = json.dumps(AvroSchemaConversion().iceberg_to_avro(written, schema_name=_ENTRY))
    return resolve_writer(record_schema=given, file_schema=written), text
