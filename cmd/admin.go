package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// adminCommand is `kiln admin`.
func adminCommand() *cobra.Command {
	c := &cobra.Command{Use: "admin", Short: "Administer the service: clients, users, keys, the search index, notifications"}
	c.AddCommand(reindex(), client(), user(), signingKey(), apiKey(), grant(), consoleSession(), notification(), adminConfig(), adminFeatures(), adminCache(), adminDatabase(), adminServers(), adminAudit(), adminSearches(), adminIndexes(), adminJobs(), adminRetention(), epochs())
	return c
}

// remote is a running server that a command talks to.
type remote struct{ server, token string }

// flags adds the flags that say which server it is.
func (r *remote) flags(c *cobra.Command) {
	c.Flags().StringVar(&r.server, "server", "", "base URL of the server (default the configured one)")
	c.Flags().StringVar(&r.token, "token", "", "bearer token")
}

// base is the URL of the server, without a trailing slash.
func (r *remote) base(c *cobra.Command) (string, error) {
	base := r.server
	if base == "" {
		cfg, err := loadConfig(c)
		if err != nil {
			return "", err
		}
		if base = cfg.Server.BaseURL; base == "" {
			base = cfg.Server.Scheme() + "://" + cfg.Server.Listen
		}
	}
	if u, err := url.Parse(base); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return "", fmt.Errorf("the server %q is not the URL of one: expected such as https://fhir.example.org/fhir", base)
	}
	return strings.TrimRight(base, "/"), nil
}

// refusalOf is the error in an OperationOutcome.
func refusalOf(status string, answer []byte) error {
	var outcome struct {
		Issue []struct{ Diagnostics string }
	}
	if json.Unmarshal(answer, &outcome) != nil || len(outcome.Issue) == 0 {
		return fmt.Errorf("the server answers %s", status)
	}
	var texts []string
	for _, i := range outcome.Issue {
		texts = append(texts, i.Diagnostics)
	}
	return fmt.Errorf("the server answers %s: %s", status, strings.Join(texts, "\n"))
}

// call makes a request and returns the answer's body; an OperationOutcome in place
// of it is the error.
func (r *remote) call(c *cobra.Command, method, path, contentType string, body []byte) ([]byte, error) {
	base, err := r.base(c)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(c.Context(), method, base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/fhir+json")
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	if r.token != "" {
		req.Header.Set("Authorization", "Bearer "+r.token)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode < 300 {
		return answer, nil
	}
	return nil, refusalOf(resp.Status, answer)
}

// reindex is `kiln admin reindex`.
func reindex() *cobra.Command {
	var r remote
	var types, parameters []string
	var watch, start bool
	c := &cobra.Command{
		Use:   "reindex",
		Short: "Show the progress of reindexing, or start it",
		Example: `  kiln admin reindex
  kiln admin reindex --server https://fhir.example.org/fhir --token "$TOKEN"`,
		Long: `Show the jobs that index stored resources again, with their rate and the time left.
A change of a SearchParameter starts such jobs, and so does another build of the
server. With --start, compare the index of all resources, or of the types in --type,
with the search parameters, and correct it.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if start {
				q := url.Values{"type": types, "parameter": parameters}
				if _, err := r.call(c, http.MethodPost, "/$reindex?"+q.Encode(), "", nil); err != nil {
					return err
				}
			} else if len(types)+len(parameters) > 0 {
				return fmt.Errorf("--type and --parameter need --start")
			}
			return showJobs(c, &r, watch)
		},
	}
	r.flags(c)
	f := c.Flags()
	f.BoolVar(&watch, "watch", false, "repeat every second until no job is left")
	f.BoolVar(&start, "start", false, "start a job for each resource type")
	f.StringSliceVar(&types, "type", nil, "resource types to start a job for (default all)")
	f.StringSliceVar(&parameters, "parameter", nil, "only types that have one of these search parameters")
	return c
}

// job is a job as $reindex tells of it.
type job struct {
	ID         string   `json:"id"`
	Type       string   `json:"type"`
	Parameters []string `json:"parameters,omitempty"`
	State      string   `json:"state"`
	Reason     string   `json:"reason"`
	Total      int64    `json:"total"`
	Done       int64    `json:"done"`
	Changed    int64    `json:"changed"`
	Failed     int64    `json:"failed"`
	Rate       float64  `json:"resourcesPerSecond"`
	Remaining  int64    `json:"remainingSeconds"`
	Failure    string   `json:"failure,omitempty"`
}

// readJobs reads the answer of $reindex.
func readJobs(body []byte) ([]job, error) {
	var answer struct {
		Parameter []struct {
			Part []struct {
				Name         string
				ValueString  string
				ValueCode    string
				ValueURI     string
				ValueDecimal json.Number
			}
		}
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, fmt.Errorf("the answer is no Parameters resource: %w", err)
	}
	jobs := []job{} // none is [] in JSON
	for _, p := range answer.Parameter {
		var j job
		for _, part := range p.Part {
			number, err := part.ValueDecimal.Float64()
			if err != nil {
				number = 0 // the part is a text
			}
			switch part.Name {
			case "id":
				j.ID = part.ValueString
			case "type":
				j.Type = part.ValueCode
			case "parameter":
				j.Parameters = append(j.Parameters, part.ValueURI)
			case "state":
				j.State = part.ValueCode
			case "reason":
				j.Reason = part.ValueString
			case "total":
				j.Total = int64(number)
			case "done":
				j.Done = int64(number)
			case "changed":
				j.Changed = int64(number)
			case "failed":
				j.Failed = int64(number)
			case "rate":
				j.Rate = number
			case "remainingSeconds":
				j.Remaining = int64(number)
			case "failure":
				j.Failure = part.ValueString
			}
		}
		jobs = append(jobs, j)
	}
	return jobs, nil
}

// showJobs prints the jobs, once or until none is left.
func showJobs(c *cobra.Command, r *remote, watch bool) error {
	for {
		body, err := r.call(c, http.MethodGet, "/$reindex", "", nil)
		if err != nil {
			return err
		}
		jobs, err := readJobs(body)
		if err != nil {
			return err
		}
		left := false
		for _, j := range jobs {
			left = left || j.State != "done"
		}
		if wantsJSON(c) {
			if err := printJSON(c.OutOrStdout(), jobs); err != nil {
				return err
			}
		} else {
			tellJobs(c.OutOrStdout(), jobs)
		}
		if !watch || !left {
			return nil
		}
		if err := sleepFor(c.Context(), time.Second); err != nil {
			return err
		}
	}
}

func sleepFor(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// tellJobs prints a line for each job.
func tellJobs(w io.Writer, jobs []job) {
	if len(jobs) == 0 {
		fmt.Fprintln(w, "no jobs: the index is up to date")
	}
	for _, j := range jobs {
		percent := 0.0
		switch {
		case j.Total > 0:
			percent = 100 * float64(j.Done) / float64(j.Total)
		case j.State == "done":
			percent = 100
		}
		fmt.Fprintf(w, "%-24s %-8s %5.1f %%  %d of %d, %d changed, %.0f/s", j.Type, j.State, percent, j.Done, j.Total, j.Changed, j.Rate)
		if j.State == "running" {
			fmt.Fprintf(w, ", %s left", time.Duration(j.Remaining)*time.Second)
		}
		if j.Failed > 0 {
			fmt.Fprintf(w, ", %d FAILED: %s", j.Failed, j.Failure)
		}
		if j.Reason != "" {
			fmt.Fprintf(w, " (%s)", j.Reason)
		}
		fmt.Fprintln(w)
	}
}
