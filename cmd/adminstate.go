package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// The commands of a running server's administration: each requests one endpoint below
// /admin and prints the answer.

// ask is a command that makes one request and prints the answer as JSON. request
// returns method, path and body for its arguments.
func ask(use, short string, args cobra.PositionalArgs, request func(args []string) (method, path string, body any, err error)) *cobra.Command {
	var r remote
	c := &cobra.Command{Use: use, Short: short, Args: args, RunE: func(c *cobra.Command, args []string) error {
		method, path, body, err := request(args)
		if err != nil {
			return err
		}
		var data []byte
		contentType := ""
		if body != nil {
			if data, err = json.Marshal(body); err != nil {
				return err
			}
			contentType = "application/json"
		}
		answer, err := r.call(c, method, path, contentType, data)
		if err != nil {
			return err
		}
		var out bytes.Buffer
		if err := json.Indent(&out, answer, "", "  "); err != nil {
			return fmt.Errorf("the answer is not JSON: %w", err)
		}
		fmt.Fprintln(c.OutOrStdout(), strings.TrimSpace(out.String()))
		return nil
	}}
	r.flags(c)
	return c
}

// get is ask for a path that does not depend on arguments.
func get(use, short, path string) *cobra.Command {
	return ask(use, short, cobra.NoArgs, func([]string) (string, string, any, error) { return http.MethodGet, path, nil, nil })
}

// keyPath is the path of a configuration key.
func keyPath(key string) (string, error) {
	category, name, ok := strings.Cut(key, ".")
	if !ok {
		return "", fmt.Errorf("%q is not a key: expected one such as search.default_count", key)
	}
	return "/admin/config/" + url.PathEscape(category) + "/" + url.PathEscape(name), nil
}

// jsonValue is text as JSON where it is that, else as a string.
func jsonValue(text string) any {
	if json.Valid([]byte(text)) {
		return json.RawMessage(text)
	}
	return text
}

// adminConfig is `kiln admin config`.
func adminConfig() *cobra.Command {
	c := &cobra.Command{Use: "config", Short: "Show and change the configuration in force on all servers"}
	c.AddCommand(
		get("list", "List every key with its value and source", "/admin/config"),
		ask("get CATEGORY", "Show the values of a category", cobra.ExactArgs(1), func(a []string) (string, string, any, error) {
			return http.MethodGet, "/admin/config/" + url.PathEscape(a[0]), nil, nil
		}),
		ask("set KEY VALUE", "Put a value into the database, above the file", cobra.ExactArgs(2), func(a []string) (string, string, any, error) {
			path, err := keyPath(a[0])
			return http.MethodPut, path, map[string]any{"value": jsonValue(a[1])}, err
		}),
		ask("reset KEY", "Take a value back out of the database", cobra.ExactArgs(1), func(a []string) (string, string, any, error) {
			path, err := keyPath(a[0])
			return http.MethodDelete, path, nil, err
		}),
	)
	return c
}

// adminFeatures is `kiln admin features`.
func adminFeatures() *cobra.Command {
	c := &cobra.Command{Use: "features", Short: "Show and switch feature flags on all servers"}
	flag := func(a []string) string { return "/admin/features/" + url.PathEscape(a[0]) }
	var enable *cobra.Command
	var percentage int
	var clients []string
	enable = ask("enable FLAG", "Switch a flag on, for everyone or for some clients", cobra.ExactArgs(1), func(a []string) (string, string, any, error) {
		body := map[string]any{"enabled": true}
		if enable.Flags().Changed("percentage") {
			body["percentage"] = percentage
		}
		if len(clients) > 0 {
			body["clients"] = clients
		}
		return http.MethodPut, flag(a), body, nil
	})
	enable.Flags().IntVar(&percentage, "percentage", 100, "percentage of the clients, by a hash of their id")
	enable.Flags().StringSliceVar(&clients, "client", nil, "client that it is on for; may be repeated")
	c.AddCommand(
		get("list", "List the flags", "/admin/features"),
		ask("get FLAG", "Show a flag", cobra.ExactArgs(1), func(a []string) (string, string, any, error) {
			return http.MethodGet, flag(a), nil, nil
		}),
		enable,
		ask("disable FLAG", "Switch a flag off", cobra.ExactArgs(1), func(a []string) (string, string, any, error) {
			return http.MethodPut, flag(a), map[string]any{"enabled": false}, nil
		}),
		ask("reset FLAG", "Remove a flag's value from the database", cobra.ExactArgs(1), func(a []string) (string, string, any, error) {
			return http.MethodDelete, flag(a), nil, nil
		}),
	)
	return c
}

// adminCache is `kiln admin cache`.
func adminCache() *cobra.Command {
	c := &cobra.Command{Use: "cache", Short: "Show and empty caches"}
	c.AddCommand(
		get("stats", "Show the caches of one server", "/admin/cache/stats"),
		ask("clear [CACHE…]", "Empty caches on every server", cobra.ArbitraryArgs, func(a []string) (string, string, any, error) {
			return http.MethodPost, "/admin/cache/clear", map[string]any{"caches": a}, nil
		}),
	)
	return c
}

// adminDatabase is `kiln admin db`.
func adminDatabase() *cobra.Command {
	c := &cobra.Command{Use: "db", Short: "Show the state of the database"}
	c.AddCommand(get("stats", "Show sizes, vacuums, connections and lag", "/admin/db/stats"))
	return c
}

// adminSearches is `kiln admin searches`.
func adminSearches() *cobra.Command {
	return get("searches", "List the searches that were run, by shape, slowest first", "/admin/searches")
}

// adminIndexes is `kiln admin indexes`.
func adminIndexes() *cobra.Command {
	c := &cobra.Command{Use: "indexes", Short: "Show suggested database indexes, and create or drop indexes"}
	var typ string
	suggestions := ask("suggestions", "List the indexes that were proved to help", cobra.NoArgs, func([]string) (string, string, any, error) {
		path := "/admin/indexes/suggestions"
		if typ != "" {
			path += "?" + url.Values{"resource_type": {typ}}.Encode()
		}
		return http.MethodGet, path, nil, nil
	})
	suggestions.Flags().StringVar(&typ, "type", "", "only suggestions for searches of this resource type")
	c.AddCommand(suggestions, ask("apply ID", "Build a suggested index, while others read and write", cobra.ExactArgs(1), func(a []string) (string, string, any, error) {
		return http.MethodPost, "/admin/indexes/suggestions/" + url.PathEscape(a[0]) + "/apply", nil, nil
	}))
	sort := func(a []string) string {
		return "/admin/indexes/sort/" + url.PathEscape(a[0]) + "/" + url.PathEscape(a[1])
	}
	c.AddCommand(
		get("list", "List the indexes for _sort that were asked for, and how far they are", "/admin/indexes/sort"),
		ask("sort TYPE PARAMETER", "Index the order of a token, reference or uri, for _sort of any number of matches", cobra.ExactArgs(2), func(a []string) (string, string, any, error) {
			return http.MethodPut, sort(a), nil, nil
		}),
		ask("unsort TYPE PARAMETER", "Take such an index back; searches sort in memory again", cobra.ExactArgs(2), func(a []string) (string, string, any, error) {
			return http.MethodDelete, sort(a), nil, nil
		}),
	)
	return c
}

// adminJobs is `kiln admin jobs`.
func adminJobs() *cobra.Command {
	c := &cobra.Command{Use: "jobs", Short: "List and cancel background jobs"}
	c.AddCommand(
		get("list", "List the jobs, newest first", "/admin/jobs"),
		ask("get ID", "Show a job", cobra.ExactArgs(1), func(a []string) (string, string, any, error) {
			return http.MethodGet, "/admin/jobs/" + url.PathEscape(a[0]), nil, nil
		}),
		ask("cancel ID", "Cancel a job", cobra.ExactArgs(1), func(a []string) (string, string, any, error) {
			return http.MethodDelete, "/admin/jobs/" + url.PathEscape(a[0]), nil, nil
		}),
	)
	return c
}

// adminRetention is `kiln admin retention`.
func adminRetention() *cobra.Command {
	c := &cobra.Command{Use: "retention", Short: "Delete AuditEvents and versions older than their retention"}
	c.AddCommand(ask("run", "Start the job now; it also starts by itself once a day", cobra.NoArgs, func([]string) (string, string, any, error) {
		return http.MethodPost, "/admin/retention", nil, nil
	}))
	return c
}

// adminServers is `kiln admin servers`.
func adminServers() *cobra.Command {
	return get("servers", "List the servers that work on the database", "/admin/servers")
}

// adminAudit is `kiln admin audit`.
func adminAudit() *cobra.Command {
	c := &cobra.Command{Use: "audit", Short: "Follow and export AuditEvents"}
	c.AddCommand(auditTail(), auditExport())
	return c
}

// auditPage reads a page of AuditEvents: their bodies, oldest first as the query
// says, and the path of the next page.
func auditPage(c *cobra.Command, r *remote, path string) (events []json.RawMessage, next string, err error) {
	body, err := r.call(c, http.MethodGet, path, "", nil)
	if err != nil {
		return nil, "", err
	}
	var bundle struct {
		Link  []struct{ Relation, URL string }
		Entry []struct{ Resource json.RawMessage }
	}
	if err := json.Unmarshal(body, &bundle); err != nil {
		return nil, "", fmt.Errorf("the answer is no Bundle: %w", err)
	}
	for _, e := range bundle.Entry {
		events = append(events, e.Resource)
	}
	for _, l := range bundle.Link {
		if u, err := url.Parse(l.URL); l.Relation == "next" && err == nil {
			next = "/AuditEvent?" + u.RawQuery
		}
	}
	return events, next, nil
}

// printEvent prints an AuditEvent on one line.
func printEvent(c *cobra.Command, event json.RawMessage) error {
	var line bytes.Buffer
	if err := json.Compact(&line, event); err != nil {
		return fmt.Errorf("an AuditEvent is not JSON: %w", err)
	}
	_, err := fmt.Fprintln(c.OutOrStdout(), line.String())
	return err
}

func auditExport() *cobra.Command {
	var r remote
	var since string
	c := &cobra.Command{Use: "export", Short: "Print AuditEvents as NDJSON, oldest first", Args: cobra.NoArgs, RunE: func(c *cobra.Command, _ []string) error {
		q := url.Values{"_sort": {"_lastUpdated"}, "_count": {"200"}, "_total": {"none"}}
		if since != "" {
			q.Set("_lastUpdated", "ge"+since)
		}
		for path := "/AuditEvent?" + q.Encode(); path != ""; {
			events, next, err := auditPage(c, &r, path)
			if err != nil {
				return err
			}
			for _, e := range events {
				if err := printEvent(c, e); err != nil {
					return err
				}
			}
			path = next
		}
		return nil
	}}
	r.flags(c)
	c.Flags().StringVar(&since, "since", "", "only events since a FHIR date or instant")
	return c
}

func auditTail() *cobra.Command {
	var r remote
	c := &cobra.Command{Use: "tail", Short: "Print the latest AuditEvents as NDJSON, and follow new ones", Args: cobra.NoArgs, RunE: func(c *cobra.Command, _ []string) error {
		seen := make(map[string]bool)
		for {
			events, _, err := auditPage(c, &r, "/AuditEvent?_sort=-_lastUpdated&_count=200&_total=none")
			if err != nil {
				return err
			}
			now := make(map[string]bool, len(events))
			for _, e := range slices.Backward(events) {
				var head struct{ ID string }
				if err := json.Unmarshal(e, &head); err != nil {
					return fmt.Errorf("an AuditEvent is not JSON: %w", err)
				}
				if now[head.ID] = true; !seen[head.ID] {
					if err := printEvent(c, e); err != nil {
						return err
					}
				}
			}
			seen = now
			if err := sleepFor(c.Context(), time.Second); err != nil {
				return nil // interrupted
			}
		}
	}}
	r.flags(c)
	return c
}
