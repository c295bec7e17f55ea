#!/usr/bin/env bash
# Fetches what the viewer check needs into a folder: OHIF as built by its makers, and the library that drives Chromium.
# Both are unpacked from their packages alone; what OHIF's package lists as dependencies was needed to build it.
set -euo pipefail
folder=${1:?name the folder}
mkdir -p "$folder"
cd "$folder"
for package in "@ohif/app@^3.13.2" "playwright-core@^1.60.0"; do
  name=$(basename "${package%@*}")
  test -f "$name/package.json" && continue
  rm -rf "$name" && mkdir "$name"
  archive=$(npm pack --silent "$package" | tail -1)
  tar -xzf "$archive" -C "$name" --strip-components=1
  rm "$archive"
done
