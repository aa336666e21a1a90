package main

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"kiln/definitions"
)

// pack is `kiln package`.
func pack() *cobra.Command {
	var source definitions.Source
	var dir string
	c := &cobra.Command{
		Use:   "package",
		Short: "Add, list and remove FHIR packages, in the source tree or on a running server",
		Example: `  kiln package list
  kiln package add hl7.fhir.uv.ips@2.0.0 && make generate build
  kiln package install hl7.fhir.uv.ips@2.0.0 --server http://127.0.0.1:8080/fhir`,
		Long: `FHIR packages (R4 itself, implementation guides) that the server is compiled from
are kept condensed in definitions/. After a change there, generate and build again:

	make generate build

A running server takes the definitions of a package as resources: install.`,
	}
	f := c.PersistentFlags()
	f.StringVar(&dir, "dir", "definitions", "folder of the packages in the source tree")
	f.StringVar(&source.Registry, "registry", "", "npm or FHIR package registry (default npm's: npm config get registry)")
	c.AddCommand(
		install(&source),
		listPackages(&dir),
		removePackage(&dir),
		&cobra.Command{
			Use:   "add NAME@VERSION|FILE.tgz",
			Short: "Fetch a package, check its digest and put it into the source tree",
			Example: `  kiln package add hl7.fhir.uv.ips@2.0.0
  kiln package add ips.tgz`,
			Args: cobra.ExactArgs(1),
			RunE: func(c *cobra.Command, args []string) error {
				if err := inTree(dir); err != nil {
					return err
				}
				p, err := source.Add(c.Context(), dir, args[0])
				if err != nil {
					return err
				}
				conflicts, err := definitions.Conflicts(os.DirFS(dir), p)
				if err != nil {
					return err
				}
				return tellPackage(c, "added", p, conflicts...)
			},
		},
	)
	return c
}

// listPackages is `kiln package list`.
func listPackages(dir *string) *cobra.Command {
	var r remote
	c := &cobra.Command{
		Use:   "list",
		Short: "List the packages of the source tree, of this program where there is none, or of a running server",
		Example: `  kiln package list --json
  kiln package list --server http://127.0.0.1:8080/fhir`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if on, err := r.onServer(); err != nil {
				return err
			} else if on {
				return listInstalled(c, &r)
			}
			var from fs.FS = definitions.FS
			if inTree(*dir) == nil {
				from = os.DirFS(*dir)
			}
			list, err := definitions.List(from)
			if err != nil {
				return err
			}
			if wantsJSON(c) {
				return printJSON(c.OutOrStdout(), list)
			}
			for _, p := range list {
				fmt.Fprintf(c.OutOrStdout(), "%s@%s  %s\n", p.Name, p.Version, contents(p))
			}
			return nil
		},
	}
	r.serverFlags(c)
	return c
}

// removePackage is `kiln package remove`.
func removePackage(dir *string) *cobra.Command {
	var r remote
	var dryRun bool
	c := &cobra.Command{
		Use:   "remove NAME[@VERSION]",
		Short: "Take a package out of the source tree, or off a running server",
		Long: `Take a package out of the source tree. With --server, delete what it brought to a
running server, but for what has been changed since and what another installed
package brought too.`,
		Example: `  kiln package remove hl7.fhir.uv.ips@2.0.0
  kiln package remove hl7.fhir.uv.ips --server http://127.0.0.1:8080/fhir --dry-run`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			switch on, err := r.onServer(); {
			case err != nil:
				return err
			case on:
				return removeInstalled(c, &r, args[0], dryRun)
			case dryRun:
				return fmt.Errorf("--dry-run is for a running server: give --server too")
			}
			if err := inTree(*dir); err != nil {
				return err
			}
			p, err := definitions.Remove(*dir, args[0])
			if err != nil {
				return err
			}
			return tellPackage(c, "removed", p)
		},
	}
	r.serverFlags(c)
	c.Flags().BoolVar(&dryRun, "dry-run", false, "show what would be deleted on the server, and delete nothing")
	return c
}

// inTree refuses to make a folder of definitions where no source tree is.
func inTree(dir string) error {
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return fmt.Errorf("there is no folder %s here: run this at the top of the source tree, or name the folder with --dir", dir)
	}
	return nil
}

// tellPackage says what was done, and which definitions are not used since another
// package has their URL.
func tellPackage(c *cobra.Command, verb string, p definitions.Package, conflicts ...definitions.Conflict) error {
	if wantsJSON(c) {
		return printJSON(c.OutOrStdout(), struct {
			definitions.Package
			Conflicts []definitions.Conflict `json:"conflicts,omitempty"`
		}{p, conflicts})
	}
	for _, d := range conflicts {
		fmt.Fprintf(c.ErrOrStderr(), "%s: the definition of %s is used, that of %s is not\n", d.URL, d.Used, d.Hidden)
	}
	fmt.Fprintf(c.OutOrStdout(), "%s %s@%s: %s\nnow run: make generate build\n", verb, p.Name, p.Version, contents(p))
	return nil
}

// contents counts what a package defines: "655 StructureDefinition, …".
func contents(p definitions.Package) string {
	var parts []string
	for _, typ := range slices.Sorted(maps.Keys(p.Resources)) {
		parts = append(parts, fmt.Sprintf("%d %s", p.Resources[typ], typ))
	}
	return strings.Join(parts, ", ")
}
