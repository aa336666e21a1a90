// Generate compiles definitions/ to gen/. Everything is rendered before anything
// is written, so that a definition it cannot compile leaves the tree as it was.
package main

import (
	"flag"
	"fmt"
	"os"

	"kiln/codegen"
)

func main() {
	from := flag.String("definitions", "definitions", "folder of the definitions")
	to := flag.String("gen", "gen", "folder to write to")
	flag.Parse()
	if err := run(*from, *to); err != nil {
		fmt.Fprintln(os.Stderr, "codegen:", err)
		os.Exit(1)
	}
}

func run(from, to string) error {
	tree, _, err := codegen.Generate(os.DirFS(from))
	if err != nil {
		return err
	}
	return tree.Write(to)
}
