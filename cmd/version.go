package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// release is set by the build; a build without it is named after its commit.
var release string

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

// softwareVersion is the release, or the commit that was built.
func softwareVersion() string {
	if release != "" {
		return release
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	commit, dirty := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision" && len(s.Value) >= 12:
			commit = s.Value[:12]
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "+changes"
		}
	}
	if commit == "" {
		return "0-dev"
	}
	return "0-" + commit + dirty
}
