package definitions

import (
	"embed"
	"sync"
)

// FS is this folder as the program was built with it: the manifest, the condensed
// packages and the local definitions.
//
//go:embed packages.json *.ndjson.gz local/*.json
var FS embed.FS

// Embedded opens the Library of FS, once, when it is first asked for. All parts of
// a program share it.
var Embedded = sync.OnceValues(func() (*Library, error) { return Open(FS) })
