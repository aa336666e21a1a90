package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
)

// notification is `kiln admin notification`.
func notification() *cobra.Command {
	c := &cobra.Command{Use: "notification", Short: "Show and repeat deliveries of notifications"}
	c.AddCommand(listDeliveries(), showDelivery(), redeliver(), tailDeliveries())
	return c
}

// queued is a delivery as the server tells of it.
type queued struct {
	ID            string `json:"id"`
	Subscription  string `json:"subscription"`
	Event         string `json:"event"`
	ResourceType  string `json:"resourceType"`
	ResourceID    string `json:"resourceId"`
	VersionID     string `json:"versionId"`
	Status        string `json:"status"`
	NextAttemptAt string `json:"nextAttemptAt"`
	Attempts      []struct {
		At         string `json:"at"`
		Status     int    `json:"status"`
		DurationMS int64  `json:"durationMs"`
		Error      string `json:"error"`
	} `json:"attempts"`
}

// last is the last attempt in a few words.
func (q queued) last() string {
	if len(q.Attempts) == 0 {
		return ""
	}
	a := q.Attempts[len(q.Attempts)-1]
	if a.Error != "" {
		return a.Error
	}
	return fmt.Sprintf("%d in %d ms", a.Status, a.DurationMS)
}

// deliveryQuery is what to list.
type deliveryQuery struct {
	subscription, status, since string
	count                       int
}

func (q *deliveryQuery) flags(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&q.subscription, "subscription", "", "only deliveries of a Subscription, by its id")
	f.StringVar(&q.status, "status", "", "only pending, processing, delivered or failed ones")
}

func (q deliveryQuery) path() string {
	v := url.Values{"_count": {fmt.Sprint(q.count)}}
	for name, value := range map[string]string{"subscription": q.subscription, "status": q.status, "_since": q.since} {
		if value != "" {
			v.Set(name, value)
		}
	}
	return "/admin/notifications/deliveries?" + v.Encode()
}

func fetchDeliveries(c *cobra.Command, r *remote, path string) ([]queued, []byte, error) {
	b, err := r.call(c, http.MethodGet, path, "", nil)
	if err != nil {
		return nil, nil, err
	}
	var page struct{ Deliveries []queued }
	return page.Deliveries, b, json.Unmarshal(b, &page)
}

// listDeliveries is `kiln admin notification list`.
func listDeliveries() *cobra.Command {
	var r remote
	var q deliveryQuery
	var asJSON bool
	c := &cobra.Command{
		Use: "list", Short: "List deliveries, the newest first", Args: cobra.NoArgs,
		Example: "  kiln admin notification list --status failed",
		RunE: func(c *cobra.Command, _ []string) error {
			list, raw, err := fetchDeliveries(c, &r, q.path())
			if err != nil {
				return err
			}
			out := c.OutOrStdout()
			if asJSON {
				_, err := out.Write(raw)
				return err
			}
			w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
			fmt.Fprintln(w, "ID\tSUBSCRIPTION\tEVENT\tRESOURCE\tSTATUS\tATTEMPTS\tLAST")
			for _, d := range list {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s/%s/%s\t%s\t%d\t%s\n", d.ID, d.Subscription, d.Event, d.ResourceType, d.ResourceID, d.VersionID, d.Status, len(d.Attempts), d.last())
			}
			return w.Flush()
		},
	}
	r.flags(c)
	q.flags(c)
	c.Flags().StringVar(&q.since, "since", "", "only deliveries queued since an instant")
	c.Flags().IntVar(&q.count, "count", 100, "number of deliveries, at most")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// showDelivery is `kiln admin notification show`.
func showDelivery() *cobra.Command {
	var r remote
	c := &cobra.Command{
		Use: "show ID", Short: "Show a delivery with its attempts", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			b, err := r.call(c, http.MethodGet, "/admin/notifications/deliveries/"+url.PathEscape(args[0]), "", nil)
			if err == nil {
				_, err = c.OutOrStdout().Write(b)
			}
			return err
		},
	}
	r.flags(c)
	return c
}

// redeliver is `kiln admin notification redeliver`.
func redeliver() *cobra.Command {
	var r remote
	var subscription string
	var dead bool
	c := &cobra.Command{
		Use: "redeliver [ID…]", Short: "Repeat deliveries, or all dead letters",
		Example: "  kiln admin notification redeliver --dead-letters --subscription 123",
		RunE: func(c *cobra.Command, args []string) error {
			switch {
			case dead && len(args) > 0:
				return fmt.Errorf("--dead-letters means all of them: give no ID")
			case !dead && (len(args) == 0 || subscription != ""):
				return fmt.Errorf("name deliveries by ID, or give --dead-letters")
			case dead:
				path := "/admin/notifications/dead-letters/redeliver"
				if subscription != "" {
					path += "?subscription=" + url.QueryEscape(subscription)
				}
				b, err := r.call(c, http.MethodPost, path, "", nil)
				if err != nil {
					return err
				}
				var out struct{ Redelivered int }
				if err := json.Unmarshal(b, &out); err != nil {
					return err
				}
				fmt.Fprintf(c.OutOrStdout(), "%d deliveries are in the queue again\n", out.Redelivered)
				return nil
			}
			for _, id := range args {
				if _, err := r.call(c, http.MethodPost, "/admin/notifications/deliveries/"+url.PathEscape(id)+"/redeliver", "", nil); err != nil {
					return fmt.Errorf("%s: %w", id, err)
				}
				fmt.Fprintln(c.OutOrStdout(), id)
			}
			return nil
		},
	}
	r.flags(c)
	c.Flags().BoolVar(&dead, "dead-letters", false, "repeat all dead letters")
	c.Flags().StringVar(&subscription, "subscription", "", "with --dead-letters: only deliveries of a Subscription, by its id")
	return c
}

// tailDeliveries is `kiln admin notification tail`.
func tailDeliveries() *cobra.Command {
	var r remote
	q := deliveryQuery{count: 1000}
	c := &cobra.Command{
		Use: "tail", Short: "Print deliveries as they finish, until interrupted", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			since := time.Now()
			seen := make(map[string]string)
			for {
				// Long enough ago for one that was tried a few times.
				q.since = since.Add(-10 * time.Minute).UTC().Format(time.RFC3339Nano)
				list, _, err := fetchDeliveries(c, &r, q.path())
				if err != nil {
					return err
				}
				first := len(seen) == 0
				for i := len(list) - 1; i >= 0; i-- {
					d := list[i]
					state := fmt.Sprint(d.Status, len(d.Attempts))
					if seen[d.ID] == state || len(d.Attempts) == 0 {
						continue
					}
					seen[d.ID] = state
					if !first {
						fmt.Fprintln(c.OutOrStdout(), strings.Join([]string{d.Attempts[len(d.Attempts)-1].At, d.Subscription, d.Event,
							d.ResourceType + "/" + d.ResourceID, d.Status, d.last()}, "  "))
					}
				}
				if first {
					seen[""] = ""
				}
				select {
				case <-c.Context().Done():
					return nil
				case <-time.After(time.Second):
				}
				since = time.Now()
			}
		},
	}
	r.flags(c)
	q.flags(c)
	return c
}
