package main

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"kiln/definitions"
	"kiln/server"
	"kiln/server/fhirpackage"
)

// packageCommand is `kiln package`.
func packageCommand() *cobra.Command {
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
		addPackage(&source, &dir),
	)
	return c
}

// addPackage is `kiln package add`.
func addPackage(source *definitions.Source, dir *string) *cobra.Command {
	var strict bool
	c := &cobra.Command{
		Use:   "add NAME@VERSION|FILE.tgz",
		Short: "Fetch a package, check its digest and put it into the source tree",
		Long: `Fetch a package, check its digest and put its definitions into the source tree. Faults
are reported with file and element, as by "kiln package install": unreadable
definitions, search parameters that could never work, and search parameters whose code
another one of the type has already. They are left out; with --strict nothing is added
then. A search parameter that is already part of R4 is left out too.`,
		Example: `  kiln package add hl7.fhir.uv.ips@2.0.0
  kiln package add ips.tgz --strict`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := inTree(*dir); err != nil {
				return err
			}
			report := new(packageReport)
			source.Judge = func(ctx context.Context, a *definitions.Archive) (map[string]bool, error) {
				return report.read(ctx, os.DirFS(*dir), a, strict)
			}
			p, err := source.Add(c.Context(), *dir, args[0])
			if err != nil {
				return err
			}
			if report.Conflicts, err = definitions.Conflicts(os.DirFS(*dir), p); err != nil {
				return err
			}
			return tellPackage(c, "added", p, report)
		},
	}
	c.Flags().BoolVar(&strict, "strict", false, "add nothing where a definition has an error")
	return c
}

// packageReport lists the findings about an added package.
type packageReport struct {
	Issues        []packageIssue         `json:"issues,omitempty"`
	CodeConflicts []codeConflict         `json:"codeConflicts,omitempty"`
	Refused       []string               `json:"refused,omitempty"`  // files
	Existing      []string               `json:"existing,omitempty"` // files of search parameters that R4 has already
	Conflicts     []definitions.Conflict `json:"conflicts,omitempty"`
}

type packageIssue struct {
	File        string `json:"file"`
	Severity    string `json:"severity"`
	Expression  string `json:"expression,omitempty"`
	Diagnostics string `json:"diagnostics"`
}

type codeConflict struct {
	Code   string `json:"code"`
	Used   string `json:"used"`
	Hidden string `json:"hidden"`
}

// read judges an archive by the definitions of a folder, and returns the files that are not
// to be added.
func (r *packageReport) read(ctx context.Context, dir fs.FS, a *definitions.Archive, strict bool) (map[string]bool, error) {
	reader, err := server.PackageReader(dir, a.Name)
	if err != nil {
		return nil, err
	}
	got, err := reader.Read(ctx, a, strict)
	if err != nil {
		return nil, err
	}
	for _, i := range got.Issues[:min(len(got.Issues), fhirpackage.MaxIssues)] {
		r.Issues = append(r.Issues, packageIssue{i.File, string(i.Severity), i.Expression, i.Diagnostics})
	}
	for _, d := range got.Conflicts {
		r.CodeConflicts = append(r.CodeConflicts, codeConflict{d.Code, d.Used, d.Hidden})
	}
	refused := make(map[string]bool)
	for _, f := range got.Refused {
		refused[f.Name] = true
		r.Refused = append(r.Refused, f.Name)
	}
	for _, f := range got.Existing {
		refused[f.Name] = true
		r.Existing = append(r.Existing, f.Name)
	}
	return refused, nil
}

// listPackages is `kiln package list`.
func listPackages(dir *string) *cobra.Command {
	var r remote
	var replaced bool
	c := &cobra.Command{
		Use:   "list",
		Short: "List the packages of the source tree, of this program, or of a running server",
		Example: `  kiln package list --json
  kiln package list --server http://127.0.0.1:8080/fhir`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if on, err := r.onServer(); err != nil {
				return err
			} else if on {
				return listInstalled(c, &r, replaced)
			} else if replaced {
				return fmt.Errorf("--replaced is for a running server: give --server too")
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
	c.Flags().BoolVar(&replaced, "replaced", false, "with --server: list each definition that another version of its package has replaced")
	return c
}

// removePackage is `kiln package remove`.
func removePackage(dir *string) *cobra.Command {
	var r remote
	var dryRun bool
	c := &cobra.Command{
		Use:   "remove NAME[@VERSION]",
		Short: "Remove a package from the source tree, or from a running server",
		Long: `Remove a package from the source tree. With --server, delete its resources from a
running server, except resources that have been changed since and resources of other
installed packages.`,
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
			return tellPackage(c, "removed", p, nil)
		},
	}
	r.serverFlags(c)
	c.Flags().BoolVar(&dryRun, "dry-run", false, "show the resources to delete on the server, and delete none")
	return c
}

// inTree refuses to make a folder of definitions where no source tree is.
func inTree(dir string) error {
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return fmt.Errorf("there is no folder %s here: run this at the top of the source tree, or name the folder with --dir", dir)
	}
	return nil
}

// tellPackage prints the result and the findings; report may be nil.
func tellPackage(c *cobra.Command, verb string, p definitions.Package, report *packageReport) error {
	if wantsJSON(c) {
		return printJSON(c.OutOrStdout(), struct {
			definitions.Package
			*packageReport
		}{p, report})
	}
	if report != nil {
		for _, i := range report.Issues {
			printDefect(c, i.File, i.Severity, i.Expression, i.Diagnostics)
		}
		for _, d := range report.CodeConflicts {
			printCodeConflict(c, d.Code, d.Used, d.Hidden)
		}
		for _, d := range report.Conflicts {
			fmt.Fprintf(c.ErrOrStderr(), "%s: the definition of %s is used, that of %s is not\n", d.URL, d.Used, d.Hidden)
		}
	}
	fmt.Fprintf(c.OutOrStdout(), "%s %s@%s: %s", verb, p.Name, p.Version, contents(p))
	if report != nil && len(report.Refused) > 0 {
		fmt.Fprintf(c.OutOrStdout(), "; %d refused", len(report.Refused))
	}
	if report != nil && len(report.Existing) > 0 {
		fmt.Fprintf(c.OutOrStdout(), "; %d already part of R4", len(report.Existing))
	}
	fmt.Fprintln(c.OutOrStdout(), "\nnow run: make generate build")
	return nil
}

// contents counts the definitions of a package: "655 StructureDefinition, …".
func contents(p definitions.Package) string {
	var parts []string
	for _, typ := range slices.Sorted(maps.Keys(p.Resources)) {
		parts = append(parts, fmt.Sprintf("%d %s", p.Resources[typ], typ))
	}
	return strings.Join(parts, ", ")
}
