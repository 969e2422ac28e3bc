"""Checks a wheel by PEP 427 and reports its errors."""

import base64
import csv
import email
import hashlib
import io
import os
import sys
import zipfile

path = sys.argv[1]
name, version, python, abi, platform = os.path.basename(path)[: -len(".whl")].split("-")
wheel = zipfile.ZipFile(path)
wrong = []


def check(condition, message):
    if not condition:
        wrong.append(message)


check(wheel.testzip() is None, "a file's CRC is wrong")
names = wheel.namelist()
check(len(names) == len(set(names)), "a file occurs twice")
info = f"{name}-{version}.dist-info"
check(names[-1] == f"{info}/RECORD", "RECORD is not the last file")
check(names[:-1] == sorted(names[:-1]), "files are not sorted")
check(len({entry.date_time for entry in wheel.infolist()}) == 1, "files have more than one date")
record = list(csv.reader(io.StringIO(wheel.read(f"{info}/RECORD").decode())))
check([row[0] for row in record] == names, "RECORD lists other files than there are")
for file, hashed, size in record[:-1]:
    content = wheel.read(file)
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    check(hashed == f"sha256={digest}", f"RECORD has another hash of {file}")
    check(size == str(len(content)), f"RECORD has another size of {file}")
metadata = email.message_from_bytes(wheel.read(f"{info}/METADATA"))
check((metadata["Name"], metadata["Version"]) == (name, version), "METADATA names another package")
check(f"{info}/licenses/{metadata['License-File']}" in names, "the licence is missing")
tags = email.message_from_bytes(wheel.read(f"{info}/WHEEL")).get_all("Tag")
check(tags == [f"{python}-{abi}-{platform}"], f"WHEEL has the tags {tags}")
scripts = [entry for entry in wheel.infolist() if entry.filename.startswith(f"{name}-{version}.data/scripts/")]
check([os.path.basename(script.filename) for script in scripts] == ["firstlight"], "the command is missing")
check(all(script.external_attr >> 16 & 0o111 == 0o111 for script in scripts), "the command is not executable")
if wrong:
    sys.exit(f"{os.path.basename(path)}: " + "; ".join(wrong))
print(f"{os.path.basename(path)}: {len(names)} files, every hash and size as RECORD has it, tag {tags[0]}")
