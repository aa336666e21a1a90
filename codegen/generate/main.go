// Generate compiles definitions/ to gen/. Everything is rendered before anything
// is written, so that a definition it cannot compile leaves the tree as it was.
package main

import (
	"flag"
	"fmt"
	"os"

	"kiln/codegen/definition"
	"kiln/codegen/emit"
	"kiln/codegen/ir"
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
	set, err := definition.Load(os.DirFS(from))
	if err != nil {
		return err
	}
	model, err := ir.Build(set)
	if err != nil {
		return err
	}
	tree := emit.Tree{}
	if err := emit.Models(tree, model); err != nil {
		return err
	}
	if err := emit.Handlers(tree, model); err != nil {
		return err
	}
	if err := emit.Index(tree, model); err != nil {
		return err
	}
	return tree.Write(to)
}
