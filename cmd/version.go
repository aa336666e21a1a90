package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// release is the version of this tree; CHANGELOG.md describes it.
const release = "0.1.0"

// version is `kiln version`.
func version() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  kiln version --json",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if wantsJSON(c) {
				return printJSON(c.OutOrStdout(), map[string]string{"version": softwareVersion(), "fhirVersion": "4.0.1", "go": runtime.Version()})
			}
			fmt.Fprintf(c.OutOrStdout(), "kiln %s, FHIR 4.0.1, %s %s/%s\n", softwareVersion(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return nil
		},
	}
}

// softwareVersion returns the version and, if it is known, the commit of the build: "0.1.0+4f2a…".
func softwareVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return release
	}
	commit, changed := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision" && len(s.Value) >= 12:
			commit = s.Value[:12]
		case s.Key == "vcs.modified" && s.Value == "true":
			changed = ".changed"
		}
	}
	if commit == "" {
		return release
	}
	return release + "+" + commit + changed
}
