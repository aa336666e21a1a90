package main

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
)

func consoleCommand(s *settings) *cobra.Command {
	var o consoleOptions
	c := &cobra.Command{
		Use:   "console",
		Short: "Measure the pages of the console beside the same REST requests, and reads with the console on and off",
		Long: `Measure every screen of the console: bytes of a first and of a second visit, compressed, and
the time of the server beside the same REST request, in turns. Without --url it imports the
corpus and copies of it into a server of its own until there are --size resources, and measures
reads and searches with the console on and off. With --url it measures a server that runs
without authorization, such as one with 2 million resources, and writes nothing but the copies of
--importing.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return s.console(c, o) },
	}
	c.Flags().IntVar(&o.size, "size", 0, "resources of the server that is started; 0 is the corpus once")
	c.Flags().IntVar(&o.rounds, "rounds", 50, "visits of each screen")
	c.Flags().BoolVar(&o.importing, "importing", false, "measure the screens once more while a copy of the corpus is imported")
	c.Flags().BoolVar(&o.pagesOnly, "pages", false, "leave out the rows with the console on and off")
	return c
}

type consoleOptions struct {
	size, rounds         int
	importing, pagesOnly bool
}

// The goals of pages.
const (
	pageWeight  = 60_000 // bytes of a first visit, compressed
	pageTimes   = 2      // of the same REST request's p50
	pageMore    = 15.0   // ms beside that
	countedPage = 100.0  // ms, of the Overview and of Resources
	tolerance   = 1.1    // within 10% a goal counts as reached
)

// screen is a page of the console.
type screen struct {
	name, path string
	rest       string // the same question by REST, "" for none
	goal       screenGoal
}

// screenGoal is the time goal of a page.
type screenGoal int

const (
	noGoal      screenGoal = iota
	besideREST             // pageTimes and pageMore
	countedGoal            // countedPage
)

// Page is the measurement of a screen.
type Page struct {
	Screen  string  `json:"screen"`
	First   int     `json:"first_bytes"`  // a first visit with all files, compressed
	Second  int     `json:"second_bytes"` // a second visit: files stay in the browser
	P50     float64 `json:"p50_ms"`
	P99     float64 `json:"p99_ms"`
	REST    string  `json:"rest,omitempty"` // the request beside it
	RESTP50 float64 `json:"rest_p50_ms,omitempty"`
	RESTP99 float64 `json:"rest_p99_ms,omitempty"`
	Missed  string  `json:"missed,omitempty"`
}

func (s *settings) console(c *cobra.Command, o consoleOptions) error {
	ctx, out := c.Context(), c.OutOrStdout()
	t, err := s.target(ctx)
	if err != nil {
		return err
	}
	defer t.close()
	if err := s.fillConsole(c, t, o.size); err != nil {
		return err
	}
	screens, err := t.consoleScreens(ctx)
	if err != nil {
		return err
	}
	measured := map[string][]Page{}
	rows := []string{"at rest"}
	if measured[rows[0]], err = measurePages(ctx, t.bench.Client.base, screens, o.rounds); err != nil {
		return err
	}
	if o.importing {
		rows = append(rows, "during an import")
		during, cancel := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() {
			_, err := t.measure(during, copiesWorkload(1<<20, 1<<10), Load{Clients: 2, Seed: s.seed}, 1)
			ended <- err
		}()
		measured[rows[1]], err = measurePages(ctx, t.bench.Client.base, screens, o.rounds)
		cancel()
		if stopped := <-ended; stopped != nil && !errors.Is(stopped, context.Canceled) && err == nil {
			err = fmt.Errorf("the import beside the pages: %w", stopped)
		}
		if err != nil {
			return err
		}
	}
	for _, row := range rows {
		if s.jsonFile == "-" {
			break
		}
		if err := writePages(out, row, measured[row]); err != nil {
			return err
		}
	}
	if err := s.writePagesJSON(out, measured); err != nil {
		return err
	}
	if o.pagesOnly || s.jsonFile == "-" || t.kiln == nil {
		return nil
	}
	results, goals, err := t.consoleOnAndOff(ctx, s)
	if err != nil {
		return err
	}
	return writeGoals(out, Section7{Machine: machine(), Goals: goals, Results: results})
}

// fillConsole imports the corpus, and copies of it, into a server that was started.
func (s *settings) fillConsole(c *cobra.Command, t *target, size int) error {
	ctx := c.Context()
	if t.kiln == nil || s.corpus == "" {
		return nil
	}
	entries := 0
	if err := t.bench.Corpus.Each(ctx, func(b Bundle) error { entries += b.Entries; return nil }); err != nil {
		return err
	}
	copies := max(1, (size+entries-1)/max(entries, 1))
	fmt.Fprintf(c.ErrOrStderr(), "import of %d × %d resources\n", copies, entries)
	if _, err := t.measure(ctx, copiesWorkload(0, copies), Load{Clients: 4, Seed: s.seed}, 1); err != nil {
		return err
	}
	return t.settle(ctx, c.ErrOrStderr())
}

// consoleScreens are the pages with values of the server's own data.
func (t *target) consoleScreens(ctx context.Context) ([]screen, error) {
	samples, err := t.bench.Samples(ctx)
	if err != nil {
		return nil, err
	}
	patient := samples.Patients[0]
	i := slices.IndexFunc(samples.References, func(r string) bool { return strings.HasPrefix(r, "Observation/") })
	if i < 0 || len(samples.Codes) == 0 {
		return nil, errors.New("the server has no observations")
	}
	observation := samples.References[i]
	v, err := newBrowser(t.bench.Client.base)
	if err != nil {
		return nil, err
	}
	code := "code=" + url.QueryEscape(samples.Codes[0])
	byCode, err := v.goTo("Observation?" + code)
	if err != nil {
		return nil, err
	}
	ofPatient, err := v.goTo("Observation?patient=" + patient + "&_sort=-date")
	if err != nil {
		return nil, err
	}
	at := "/console/Patient/" + patient
	list := []screen{
		{"Home", "/", "", noGoal},
		{"Capabilities", "/console/capabilities", "metadata", noGoal},
		{"Overview", "/console", "", countedGoal},
		{"Resources", "/console/resources", "", countedGoal},
		{"Search Patient", "/console/resources/Patient", "Patient?_total=accurate", besideREST},
		{"Search Observation, a code", byCode, "Observation?" + code + "&_total=accurate", besideREST},
		{"Search Observation, a patient", ofPatient, "Observation?patient=" + patient + "&_sort=-date&_total=accurate", besideREST},
		{"Patient", at, "Patient/" + patient, besideREST},
		{"Observation", "/console/" + observation, observation, besideREST},
		{"JSON", at + "/json", "Patient/" + patient, besideREST},
		{"References", at + "/references", "", noGoal},
		{"History", at + "/history", "Patient/" + patient + "/_history?_count=50", besideREST},
		{"Version", at + "/history/1", "Patient/" + patient + "/_history/1", besideREST},
		{"Edit", at + "/edit", "Patient/" + patient, besideREST},
		{"Delete", at + "/delete", "Patient/" + patient, noGoal},
		{"Patient view", at + "/view", "Observation?patient=Patient/" + patient + "&_count=1000&_sort=-date&_total=accurate", noGoal},
		{"New Patient", "/console/Patient/new", "", noGoal},
		{"FHIRPath", "/console/fhirpath", "", noGoal},
		{"Requests", "/console/requests", "", noGoal},
		{"Terminology", "/console/terminology", "", noGoal},
		{"Expansion", "/console/terminology?set=http://hl7.org/fhir/ValueSet/administrative-gender", "ValueSet/$expand?url=http://hl7.org/fhir/ValueSet/administrative-gender&count=200", noGoal},
	}
	for _, x := range [][3]string{{"Subscriptions", "subscriptions", "Subscription?_count=200&_total=accurate"}, {"Live events", "live", "_history?_count=50"}, {"Apps", "apps", "App?_count=500"}, {"Jobs", "jobs", "/admin/jobs"},
		{"Definitions", "definitions", "SearchParameter?_count=500"}, {"Policies", "access/policies", "/admin/policies"}, {"Settings", "settings", "/admin/config"}, {"A setting", "settings/search.default_count", "/admin/config"},
		{"Searches", "searches", "/admin/searches"}, {"Audit", "audit", "AuditEvent?_sort=-date&_count=100"}, {"Views", "views", "/admin/views"}} {
		list = append(list, screen{x[0], "/console/" + x[1], x[2], noGoal})
	}
	return list, nil
}

// browser is a client that accepts gzip and does not follow redirects.
type browser struct {
	base   string // the origin
	prefix string // of FHIR paths
	client *http.Client
}

func newBrowser(base string) (*browser, error) {
	u, err := url.Parse(base)
	if err != nil {
		return nil, err
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		return nil, err
	}
	return &browser{u.Scheme + "://" + u.Host, u.Path, &http.Client{Jar: jar, Transport: &http.Transport{DisableCompression: true}, Timeout: 5 * time.Minute,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}, nil
}

// fetch reads a path of the origin. It returns the body as sent and the time to its end, and fails for another status than 200.
func (b *browser) fetch(ctx context.Context, path, accept string) (body []byte, took time.Duration, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, b.base+path, nil)
	if err != nil {
		return nil, 0, err
	}
	r.Header.Set("Accept", accept)
	r.Header.Set("Accept-Encoding", "gzip")
	begin := time.Now()
	w, err := b.client.Do(r)
	if err != nil {
		return nil, 0, err
	}
	defer w.Body.Close()
	body, err = io.ReadAll(w.Body)
	took = time.Since(begin)
	if err == nil && w.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s; servers with authorization are not measured", path, w.Status)
	}
	return body, took, err
}

var (
	csrfField = regexp.MustCompile(`name="csrf_token" value="([^"]*)"`)
	assetLink = regexp.MustCompile(`"(/console/assets/[^"]+)"`)
)

// goTo sends the form "Go to", and returns the address that it leads to.
func (b *browser) goTo(text string) (string, error) {
	page, _, err := b.fetch(context.Background(), "/console/fhirpath", "text/html")
	if err != nil {
		return "", err
	}
	m := csrfField.FindSubmatch(unzip(page))
	if m == nil {
		return "", errors.New("the console has no form")
	}
	form := url.Values{"csrf_token": {html.UnescapeString(string(m[1]))}, "goto": {text}}
	r, err := http.NewRequest(http.MethodPost, b.base+"/console/go", strings.NewReader(form.Encode()))
	if err != nil {
		return "", err
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	w, err := b.client.Do(r)
	if err != nil {
		return "", err
	}
	w.Body.Close()
	if w.StatusCode != http.StatusSeeOther {
		return "", fmt.Errorf("Go to %s: %s", text, w.Status)
	}
	return w.Header.Get("Location"), nil
}

// unzip returns a body without its compression.
func unzip(body []byte) []byte {
	z, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil {
		return body // it has none
	}
	out, err := io.ReadAll(z)
	if err != nil {
		return body
	}
	return out
}

// measurePages visits each screen, in turns with its REST request.
func measurePages(ctx context.Context, base string, screens []screen, rounds int) ([]Page, error) {
	b, err := newBrowser(base)
	if err != nil {
		return nil, err
	}
	const browsers = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
	var out []Page
	for _, s := range screens {
		p := Page{Screen: s.name, REST: s.rest}
		rest := s.rest
		if rest != "" && rest[0] != '/' {
			rest = b.prefix + "/" + rest
		}
		var pages, requests Histogram
		for round := range rounds + 1 { // the first fills caches of both
			body, took, err := b.fetch(ctx, s.path, browsers)
			if err != nil {
				return nil, err
			}
			if round == 0 {
				p.Second = len(body)
				if p.First, err = b.weigh(ctx, body); err != nil {
					return nil, err
				}
			} else {
				pages.Add(took)
			}
			if rest == "" {
				continue
			}
			if _, took, err = b.fetch(ctx, rest, "application/fhir+json"); err != nil {
				return nil, err
			}
			if round > 0 {
				requests.Add(took)
			}
		}
		p.P50, p.P99 = milliseconds(pages.Quantile(0.5)), milliseconds(pages.Quantile(0.99))
		if rest != "" {
			p.RESTP50, p.RESTP99 = milliseconds(requests.Quantile(0.5)), milliseconds(requests.Quantile(0.99))
		}
		p.Missed = p.missed(s.goal)
		out = append(out, p)
	}
	return out, nil
}

// weigh is the size of a page with its files.
func (b *browser) weigh(ctx context.Context, page []byte) (int, error) {
	all := len(page)
	seen := make(map[string]bool)
	for _, m := range assetLink.FindAllSubmatch(unzip(page), -1) {
		if path := string(m[1]); !seen[path] {
			seen[path] = true
			body, _, err := b.fetch(ctx, path, "*/*")
			if err != nil {
				return 0, err
			}
			all += len(body)
		}
	}
	return all, nil
}

// missed says which goals a page misses by more than 10%.
func (p Page) missed(goal screenGoal) string {
	var missed []string
	if p.First > pageWeight {
		missed = append(missed, "weight")
	}
	switch {
	case goal == besideREST && p.P50 > tolerance*(pageTimes*p.RESTP50+pageMore):
		missed = append(missed, "beside REST")
	case goal == countedGoal && p.P50 > tolerance*countedPage:
		missed = append(missed, "time")
	}
	return strings.Join(missed, ", ")
}

// writePages prints the table of the screens.
func writePages(out io.Writer, row string, pages []Page) error {
	fmt.Fprintf(out, "\n%s\npages of the console, %s, in ms and bytes\n", machine(), row)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "screen\tfirst visit\tsecond\tp50\tp99\tREST p50\tREST p99\tmissed\tREST request\t")
	for _, p := range pages {
		p50, p99 := "", ""
		if p.REST != "" {
			p50, p99 = number(p.RESTP50), number(p.RESTP99)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", p.Screen, number(float64(p.First)), number(float64(p.Second)), number(p.P50), number(p.P99), p50, p99, cmp.Or(p.Missed, "-"), p.REST)
	}
	return w.Flush()
}

// writePagesJSON writes the pages to the file of --json, "-" for out.
func (s *settings) writePagesJSON(out io.Writer, measured map[string][]Page) error {
	b, err := json.MarshalIndent(measured, "", "  ")
	switch {
	case err != nil || s.jsonFile == "":
		return err
	case s.jsonFile == "-":
		_, err = out.Write(append(b, '\n'))
		return err
	}
	return os.WriteFile(s.jsonFile, append(b, '\n'), 0o644)
}

// consoleOnAndOff measures reads and searches on a server with the console beside one without it, in turns.
func (t *target) consoleOnAndOff(ctx context.Context, s *settings) ([]Result, []Goal, error) {
	samples, err := t.bench.Samples(ctx)
	if err != nil {
		return nil, nil, err
	}
	var sides [2]*Kiln // off, on
	defer func() {
		for _, k := range sides {
			if k != nil {
				k.Stop()
			}
		}
	}()
	for i, enabled := range []string{"false", "true"} {
		if sides[i], err = startKiln(ctx, s.kiln, t.url, []string{"KILN_AUTH__ENABLED=false", "KILN_CONSOLE__ENABLED=" + enabled}); err != nil {
			return nil, nil, err
		}
	}
	asking := func(kind string, path func(w *Worker) string) Op {
		return func(_ context.Context, w *Worker) error {
			if w.Do(kind, Request{Method: "GET", Path: path(w)}) {
				w.Moved(1)
			}
			return nil
		}
	}
	l := Load{Clients: 32, Duration: s.duration, WarmUp: s.warmUp, Seed: s.seed}
	if len(s.clients) > 0 {
		l.Clients = s.clients[0]
	}
	var results []Result
	var goals []Goal
	for _, row := range []struct {
		name string
		op   Op
	}{
		{"read, console on", asking("read", func(w *Worker) string { return pick(w.Rand, samples.References) })},
		{"search, console on", asking("search", func(w *Worker) string { return "Observation?patient=" + pick(w.Rand, samples.Patients) + "&_count=20" })},
	} {
		on := func(k *Kiln) func(context.Context, Load) (*Measured, error) {
			return func(ctx context.Context, l Load) (*Measured, error) { return t.drive(ctx, l, k, row.op) }
		}
		this, floor, err := pair{this: on(sides[1]), floor: on(sides[0])}.measure(ctx, l, max(s.runs, 2))
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", row.name, err)
		}
		r := summarise(row.name, l, this)
		if r.All.Errors > 0 {
			fmt.Fprintf(os.Stderr, "%s: %d errors; the server's log ends with\n%s\n", row.name, r.All.Errors, sides[1].Log())
		}
		results = append(results, summarise(row.name+": off", l, floor), r)
		goals = append(goals, pairedGoal(row.name, this, floor, 0.97))
	}
	return results, goals, nil
}
