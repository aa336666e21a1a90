//go:build ignore

// Definitions fetches a FHIR package from a registry, or reads it from a .tgz
// file, and writes it condensed to definitions/. From the top of the tree:
//
//	go run tools/definitions/main.go [-registry URL] fetch NAME@VERSION|FILE.tgz
//	go run tools/definitions/main.go examples NAME@VERSION|FILE.tgz
//
// It is compiled with the server's module, whose package definitions does the
// work, and so stays out of the module of tools/ by its build constraint.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"

	"kiln/definitions"
)

func main() {
	registry := flag.String("registry", os.Getenv("FHIR_REGISTRY"), "base URL of an npm or FHIR registry (default npm's: npm config get registry)")
	dir := flag.String("dir", "definitions", "folder to write to")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: definitions [flags] fetch|examples NAME@VERSION|FILE.tgz")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() != 2 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, definitions.Source{Registry: *registry}, *dir, flag.Arg(0), flag.Arg(1)); err != nil {
		fmt.Fprintln(os.Stderr, "definitions:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, src definitions.Source, dir, command, spec string) error {
	switch command {
	case "fetch":
		p, err := src.Add(ctx, dir, spec)
		if err != nil {
			return err
		}
		fmt.Printf("%s@%s %s\n%v\n", p.Name, p.Version, p.Integrity, p.Resources)
		return nil
	case "examples":
		n, err := src.AddExamples(ctx, dir, spec)
		if err != nil {
			return err
		}
		fmt.Printf("%d examples\n", n)
		return nil
	}
	return fmt.Errorf("unknown command %q", command)
}
