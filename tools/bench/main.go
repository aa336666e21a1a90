package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		os.Exit(1)
	}
}

// settings are the flags that several commands share.
type settings struct {
	url, token, databaseURL string
	corpus                  string
	corpusLimit             int
	clients                 []int
	rate                    float64
	duration, warmUp        time.Duration
	runs                    int
	seed                    uint64
	samples                 int
	serverPID               int
	kiln                    string
	jsonFile, plots         string
	statements              int
	profiles                string
}

func command() *cobra.Command {
	var s settings
	root := &cobra.Command{
		Use:           "bench",
		Short:         "Measure FHIR servers",
		Long:          "Measure FHIR servers. Without a command it is section7: every speed goal of the design.",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: false,
	}
	root.RunE = func(c *cobra.Command, _ []string) error { return s.section7(c, 0) }
	f := root.PersistentFlags()
	f.StringVar(&s.url, "url", "", "base URL of the server; without it the commands that need one start bin/kiln")
	f.StringVar(&s.token, "token", "", "bearer token")
	f.StringVar(&s.databaseURL, "database-url", "", "the server's PostgreSQL, for WAL, disk and processor time; may be left out")
	f.StringVar(&s.corpus, "corpus", defaultCorpus(), "folder or .tar.zst of transaction bundles (default: the Synthea archive in $KILN_SHARED_DATA)")
	f.IntVar(&s.corpusLimit, "bundles", 0, "read only so many bundles; 0 reads all")
	f.IntSliceVar(&s.clients, "clients", nil, "client counts of the closed loop (default 32; the import uses 4)")
	f.Float64Var(&s.rate, "rate", 0, "operations a second of the open loop; 0 is a closed loop")
	f.DurationVar(&s.duration, "duration", 10*time.Second, "how long a run is measured")
	f.DurationVar(&s.warmUp, "warm-up", 2*time.Second, "load before the measurement")
	f.IntVar(&s.runs, "runs", 1, "runs of each workload; the result is their median")
	f.Uint64Var(&s.seed, "seed", 1, "seed of everything drawn at random")
	f.IntVar(&s.samples, "samples", 100, "patients to take values from")
	f.IntVar(&s.serverPID, "server-pid", 0, "the server's process (default: the listener on the port of --url)")
	f.StringVar(&s.kiln, "kiln", defaultKiln(), "the binary to start where there is no --url")
	f.StringVar(&s.jsonFile, "json", "", "write the results as JSON to this file; - is standard output")
	f.StringVar(&s.plots, "plots", "", "draw SVG plots into this folder")
	f.IntVar(&s.statements, "statements", 0, "print so many of the dearest SQL statements of each workload (pg_stat_statements)")
	f.StringVar(&s.profiles, "profiles", "", "save a CPU profile of the started server for each workload into this folder")
	root.AddCommand(section7Command(&s), slopeCommand(&s), scaleCommand(&s), copiesCommand(&s), accessCommand(&s), consoleCommand(&s), operationsCommand(&s), bulkCommand(&s), replicaCommand(&s), tablesCommand(&s), notificationsCommand(&s), appsCommand(&s), idleCommand(), soakCommand(&s), runCommand(&s), floorCommand(&s), smokeCommand(&s), listCommand())
	return root
}

func defaultCorpus() string {
	if shared := os.Getenv("KILN_SHARED_DATA"); shared != "" {
		return filepath.Join(shared, "synthea-r4-617-patients.tar.zst")
	}
	return ""
}

// defaultKiln is where make build puts the server, seen from the repository's
// root or from tools/.
func defaultKiln() string {
	if !exists("bin/kiln") && exists("../bin/kiln") {
		return "../bin/kiln"
	}
	return "bin/kiln"
}

func listCommand() *cobra.Command {
	return &cobra.Command{Use: "list", Short: "List the workloads", Args: cobra.NoArgs, RunE: func(c *cobra.Command, _ []string) error {
		for _, w := range workloads {
			fmt.Fprintf(c.OutOrStdout(), "%-18s %s\n", w.Name, w.About)
		}
		return nil
	}}
}

func runCommand(s *settings) *cobra.Command {
	return &cobra.Command{
		Use:   "run WORKLOAD[,WORKLOAD…]|all",
		Short: "Run workloads against a server and print a table",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			list, err := findWorkloads(args[0])
			if err != nil {
				return err
			}
			t, err := s.target(c.Context())
			if err != nil {
				return err
			}
			defer t.close()
			var results []Result
			for _, w := range list {
				counts := s.clients
				if len(counts) == 0 {
					counts = []int{defaultClients(w)}
				}
				for _, n := range counts {
					l := Load{Clients: n, Rate: s.rate, Duration: s.duration, WarmUp: s.warmUp, Seed: s.seed}
					fmt.Fprintf(c.ErrOrStderr(), "%s, %d clients\n", w.Name, n)
					r, err := t.measure(c.Context(), w, l, s.runs)
					if err != nil {
						return err
					}
					results = append(results, r)
				}
			}
			return s.report(c.OutOrStdout(), results)
		},
	}
}

func defaultClients(w Workload) int {
	if w.Finite {
		return 4
	}
	return 32
}

// report prints the table and writes the other requested files.
func (s *settings) report(out io.Writer, results []Result) error {
	if s.jsonFile != "-" {
		if err := writeResults(out, results); err != nil {
			return err
		}
	}
	if err := s.writeJSON(out, results); err != nil {
		return err
	}
	if s.plots != "" {
		return drawPlots(s.plots, results)
	}
	return nil
}

// writeJSON writes v to the file that --json names, or to out for "-".
func (s *settings) writeJSON(out io.Writer, v any) error {
	if s.jsonFile == "" {
		return nil
	}
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	b = append(b, '\n')
	if s.jsonFile == "-" {
		_, err = out.Write(b)
		return err
	}
	return os.WriteFile(s.jsonFile, b, 0o644)
}
