package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"kiln/gen/db"
	"kiln/server"
	"kiln/server/notify/owner"
	"kiln/server/settings"
	"kiln/server/store"
)

// finding is one thing that doctor or config check looked at.
type finding struct {
	What string `json:"what"`
	OK   bool   `json:"ok"`
	Says string `json:"says"`
}

// findings are collected in the order in which they are shown.
type findings []finding

// add notes the result of a check, and returns whether it is good: the text good is printed
// then, else the error.
func (f *findings) add(what, good string, err error) bool {
	says := good
	if err != nil {
		says = err.Error()
	}
	*f = append(*f, finding{what, err == nil, says})
	return err == nil
}

// err is every finding that is not well, a line each; nil when all are.
func (f findings) err() error {
	var list []error
	for _, one := range f {
		if !one.OK {
			list = append(list, errors.New(one.What+": "+one.Says))
		}
	}
	return errors.Join(list...)
}

// print shows a line for each finding.
func (f findings) print(w io.Writer) {
	for _, one := range f {
		mark := "ok  "
		if !one.OK {
			mark = "FAIL"
		}
		fmt.Fprintf(w, "%s  %-16s %s\n", mark, one.What, strings.ReplaceAll(one.Says, "\n", "\n                        "))
	}
}

// checkTime bounds each look at something that may not answer.
const checkTime = 5 * time.Second

// checkPort looks whether the address can be listened on, or has a Kiln already.
func (f *findings) checkPort(ctx context.Context, name, address string) {
	l, err := net.Listen("tcp", address)
	if err == nil {
		l.Close()
		f.add(name, address+" is free", nil)
		return
	}
	conn, dialErr := net.DialTimeout("tcp", address, time.Second)
	if dialErr != nil {
		f.add(name, "", fmt.Errorf("%s can neither be taken nor reached (%w): choose another address with --listen", address, err))
		return
	}
	conn.Close()
	if isKiln(ctx, "http://"+address) {
		f.add(name, "a Kiln listens on "+address+" already", nil)
		return
	}
	f.add(name, "", fmt.Errorf("another program listens on %s: stop it, or choose another port with --listen", address))
}

// isKiln reports whether a Kiln answers at a base URL, be it one that starts.
func isKiln(ctx context.Context, base string) bool {
	var statement struct {
		Software struct{ Name string } `json:"software"`
	}
	if status, err := getJSON(ctx, base+"/metadata", "", &statement); err == nil && status == http.StatusOK {
		return statement.Software.Name == "Kiln"
	}
	var health struct {
		Status string `json:"status"`
	}
	status, err := getJSON(ctx, base+"/health/live", "", &health)
	return err == nil && status == http.StatusOK && health.Status == "ok"
}

// getJSON reads a small JSON document.
func getJSON(ctx context.Context, url, authorization string, out any) (status int, err error) {
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	req.Header.Set("Accept", "application/fhir+json")
	if authorization != "" {
		req.Header.Set("Authorization", authorization)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, json.Unmarshal(body, out)
}

// checkTerminology asks the external terminology server for its metadata.
func (f *findings) checkTerminology(ctx context.Context, c server.TerminologyConfig) {
	if c.ServerURL == "" || !c.Enabled {
		return
	}
	authorization := ""
	if c.Token != "" {
		authorization = "Bearer " + c.Token
	}
	var statement struct {
		ResourceType string `json:"resourceType"`
		FHIRVersion  string `json:"fhirVersion"`
	}
	status, err := getJSON(ctx, strings.TrimRight(c.ServerURL, "/")+"/metadata", authorization, &statement)
	shown := settings.Redact(c.ServerURL)
	switch {
	case status != 0 && status != http.StatusOK:
		err = fmt.Errorf("terminology.server_url: %s answers %d %s to /metadata: it has to be the base of a FHIR terminology server", shown, status, http.StatusText(status))
	case status == 0 && err != nil:
		err = fmt.Errorf("terminology.server_url: %s cannot be reached: %s", shown, reasonOf(err))
	case err != nil || statement.ResourceType != "CapabilityStatement":
		err = fmt.Errorf("terminology.server_url: %s does not answer /metadata with a CapabilityStatement: it has to be the base of a FHIR terminology server", shown)
	}
	f.add("terminology", shown+" answers, FHIR "+statement.FHIRVersion, err)
}

// checkDatabase looks at the database behind a URL. withAuth is auth.enabled.
func (f *findings) checkDatabase(ctx context.Context, url string, withAuth bool) {
	ctx, cancel := context.WithTimeout(ctx, 2*checkTime)
	defer cancel()
	conn, err := server.Connect(ctx, url)
	if !f.add("connection", "the database takes connections", err) {
		return
	}
	defer conn.Close(context.WithoutCancel(ctx))
	f.add("version", "PostgreSQL "+conn.PgConn().ParameterStatus("server_version"), store.CheckVersion(ctx, url))
	pooler, err := store.CheckPooler(ctx, url)
	good := "no pooler between Kiln and PostgreSQL"
	if pooler == store.SessionPooler {
		good = "a pooler in session mode: each connection keeps its connection of PostgreSQL"
	}
	if !f.add("pooler", good, err) {
		return // the other findings would be about the pooler
	}
	f.checkFailover(ctx, url)
	f.checkSettings(ctx, conn)
	f.checkWritable(ctx, conn)
	f.checkTransactions(ctx, conn)
	if err := store.CheckSchema(ctx, url); err != nil {
		f.add("schema", "", err)
		return
	}
	plan, err := store.Plan(ctx, url)
	good = "up to date, every table is there"
	if len(plan) > 0 {
		good = fmt.Sprintf("%d migrations will be applied at the next start", len(plan))
	}
	if f.add("schema", good, err) && len(plan) == 0 {
		f.checkEpochs(ctx, url)
		f.checkSubscriptions(ctx, conn)
		if withAuth {
			f.checkApps(ctx, conn)
		}
	}
}

// checkFailover looks at each host of the URL: one of them takes writes.
func (f *findings) checkFailover(ctx context.Context, url string) {
	hosts, err := store.ReadHosts(ctx, url)
	if err == nil {
		err = store.CheckHosts(url)
	}
	var writable []string
	mode := "asynchronous"
	for _, h := range hosts {
		switch {
		case err == nil && h.Err != nil && len(hosts) > 1:
			err = fmt.Errorf("%s cannot be reached: %s", h, reasonOf(h.Err))
		case h.Err == nil && h.Writable:
			writable = append(writable, h.String())
			if h.Synchronous {
				mode = "synchronous"
			}
		}
	}
	if len(writable) > 1 {
		err = fmt.Errorf("%s take writes: Kiln uses the one of the latest epoch; stop the other and make it a standby", strings.Join(writable, " and "))
	}
	good := fmt.Sprintf("one host, %s", mode)
	if len(hosts) > 1 {
		good = fmt.Sprintf("%d hosts, %s takes writes, %s", len(hosts), strings.Join(writable, ""), mode)
	}
	f.add("failover", good, err)
}

// checkReplicas looks at each standby that serves reads.
func (f *findings) checkReplicas(ctx context.Context, primary string, urls []string) {
	for i, url := range urls {
		ctx, cancel := context.WithTimeout(ctx, checkTime)
		r, err := store.CheckReplica(ctx, primary, url)
		cancel()
		f.add(fmt.Sprintf("replica-%d", i+1), fmt.Sprintf("%s is a standby of this database, %.1f MB behind; hot_standby_feedback is %s", r.Host, float64(r.LagBytes)/1e6, r.Feedback), err)
	}
}

// oldTransaction is how old a transaction may be before it is a finding: as old as Kiln's own may get
// while they wait.
const oldTransaction = 10 * time.Second

// checkTransactions looks for a transaction in the cluster for which notifications and streams wait.
func (f *findings) checkTransactions(ctx context.Context, conn *pgx.Conn) {
	t, err := store.FindOldestTransaction(ctx, conn)
	if err == nil && t.Age > oldTransaction {
		err = fmt.Errorf("%s has been open for %s: notifications of all servers wait for its end", t, t.Age.Round(time.Second))
	}
	f.add("transactions", "no transaction of the cluster holds notifications back", err)
}

// checkEpochs looks whether the readers of the change log fit the history of the database.
func (f *findings) checkEpochs(ctx context.Context, url string) {
	good := ""
	list, err := store.ReadEpochs(ctx, url)
	if err == nil {
		e := list[len(list)-1]
		good = fmt.Sprintf("epoch %d, %s, since %s", e.ID.Number(), e.Cause, e.Since.Format(time.RFC3339))
	}
	f.add("epoch", good, err)
	ahead, err := store.ReadersAhead(ctx, url)
	if err == nil && len(ahead) > 0 {
		err = fmt.Errorf("ahead of the database: %s: new changes do not reach them; run kiln admin epoch new", strings.Join(ahead, ", "))
	}
	f.add("readers", "every reader of the change log is within the history of the database", err)
}

// shownIDs bounds the ids that a finding names.
const shownIDs = 20

// checkApps looks for active Apps that may do nothing, because they have no grant.
func (f *findings) checkApps(ctx context.Context, conn *pgx.Conn) {
	ids, err := db.New(conn).AppsWithoutGrant(ctx, shownIDs)
	if err == nil && len(ids) > 0 {
		err = fmt.Errorf("active without a grant: App/%s: events are withheld from them, and handlers with auth app fail; grant scopes by POST /admin/apps/{id}/grants", strings.Join(ids, ", App/"))
	}
	f.add("apps", "every active App that needs a grant has one", err)
}

// checkSubscriptions looks for Subscriptions that are off because they have no owner.
func (f *findings) checkSubscriptions(ctx context.Context, conn *pgx.Conn) {
	ids, err := db.New(conn).EndedSubscriptions(ctx, db.EndedSubscriptionsParams{Reason: owner.NoOwner, Count: shownIDs})
	if err == nil && len(ids) > 0 {
		err = fmt.Errorf("off: Subscription/%s: %s", strings.Join(ids, ", Subscription/"), owner.NoOwner)
	}
	f.add("subscriptions", "every subscription in force has an owner, or needs none", err)
}

// checkSettings checks that acknowledged writes survive a crash.
func (f *findings) checkSettings(ctx context.Context, conn *pgx.Conn) {
	settings := make(map[string]string)
	for _, name := range []string{"server_version", "server_encoding", "shared_buffers", "fsync", "full_page_writes", "synchronous_commit"} {
		var value string
		if err := conn.QueryRow(ctx, "SELECT current_setting($1)", name).Scan(&value); err != nil {
			f.add("settings", "", err)
			return
		}
		settings[name] = value
	}
	f.add("settings", fmt.Sprintf("PostgreSQL %s, encoding %s, shared_buffers %s", settings["server_version"], settings["server_encoding"], settings["shared_buffers"]), nil)
	var wrong []error
	if settings["server_encoding"] != "UTF8" {
		wrong = append(wrong, fmt.Errorf("the encoding is %s: the database has to be made with UTF8", settings["server_encoding"]))
	}
	if settings["fsync"] != "on" || settings["full_page_writes"] != "on" {
		wrong = append(wrong, fmt.Errorf("fsync is %s and full_page_writes is %s: a power failure can destroy the data", settings["fsync"], settings["full_page_writes"]))
	}
	if settings["synchronous_commit"] == "off" {
		wrong = append(wrong, errors.New("synchronous_commit is off: acknowledged writes are lost in a crash"))
	}
	f.add("durability", "acknowledged writes survive a crash", errors.Join(wrong...))
}

// checkWritable looks whether the server could store anything.
func (f *findings) checkWritable(ctx context.Context, conn *pgx.Conn) {
	var recovering, readOnly, create bool
	err := conn.QueryRow(ctx, `SELECT pg_is_in_recovery(), current_setting('transaction_read_only') = 'on',
		has_schema_privilege(current_user, current_schema(), 'CREATE')`).Scan(&recovering, &readOnly, &create)
	switch {
	case err != nil:
	case recovering:
		err = errors.New("the database is read-only: it is a standby, which follows another one")
	case readOnly:
		err = errors.New("the database is read-only: default_transaction_read_only is on for this user or database")
	case !create:
		err = errors.New("the user may not create tables in the database's schema")
	}
	f.add("writes", "the user may write and create tables", err)
}
