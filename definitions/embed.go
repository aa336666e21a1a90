package definitions

import "embed"

// FS is this folder as the program was built with it: the manifest, the condensed
// packages and the local definitions.
//
//go:embed packages.json *.ndjson.gz local/*.json
var FS embed.FS
