package store_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"kiln/server/jobs"
	"kiln/server/outcome"
	"kiln/server/search/searchtest"
	"kiln/server/store"
	"kiln/server/store/storetest"
)

// TestCheckHosts: several hosts need a target_session_attrs that finds the primary.
func TestCheckHosts(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]error{
		"postgres://kiln@a/kiln":                                    nil,
		"postgres://kiln@a,b/kiln":                                  store.ErrHosts,
		"postgres://kiln@a:1,b:2/kiln?target_session_attrs=any":     store.ErrHosts,
		"postgres://kiln@a,b/kiln?target_session_attrs=standby":     store.ErrHosts,
		"postgres://kiln@a,b/kiln?target_session_attrs=read-write":  nil,
		"postgres://kiln@a,b/kiln?target_session_attrs=primary":     nil,
		"host=a,b user=kiln":                                        store.ErrHosts,
		"host=a,b user=kiln target_session_attrs=primary":           nil,
		"postgres:///kiln?host=/run/a,/run/b&sslmode=disable":       store.ErrHosts,
		"postgres:///kiln?host=/run/a&target_session_attrs=standby": nil,
	} {
		if err := store.CheckHosts(url); !errors.Is(err, want) || want == nil && err != nil {
			t.Errorf("%s: %v, want %v", url, err, want)
		}
	}
}

// TestWriteWaitsForItsStandby has a primary whose synchronous standby is gone. A write ends within the time that a
// request may take, and is not acknowledged, though it is stored; nor is one whose wait an administrator has cancelled.
func TestWriteWaitsForItsStandby(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	primary := storetest.NewCluster(t, "synchronous_commit = on")
	standby := primary.Standby("standby")
	primary.Exec("postgres", "ALTER SYSTEM SET synchronous_standby_names = 'standby'")
	primary.Exec("postgres", "SELECT pg_reload_conf()")
	primary.Await("SELECT EXISTS (SELECT FROM pg_stat_replication WHERE sync_state = 'sync')")
	open := func(timeout time.Duration) *store.Store {
		s, err := store.Open(ctx, store.Config{URL: primary.URL(), Timeout: timeout})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		return s
	}
	const timeout = 2 * time.Second
	s, patient := open(timeout), open(time.Minute)
	write(t, s, put(t, "Patient", "p", "x"))
	standby.Stop()
	alone := func(what string, err error) {
		t.Helper()
		if o, ok := outcome.From(err); !ok || o.Issues[0].Code != outcome.CodeTimeout || o.HTTPStatus() != 503 || !strings.Contains(err.Error(), "no synchronous standby") {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, do := range map[string]func() error{
		"create": func() error { return s.Write(ctx, post(t, "Patient", "x")) },
		"update": func() error { return s.Write(ctx, put(t, "Patient", "p", "y")) },
		"transaction": func() error {
			return s.InTx(ctx, func(tx *store.Tx) error { return tx.Write(ctx, []*store.Write{put(t, "Patient", "q", "x")}) })
		},
		"setting": func() error { return s.PutSetting(ctx, store.Setting{Name: "a", Value: []byte("1")}) },
	} {
		start := time.Now()
		err := do()
		if took := time.Since(start); took > 2*timeout+time.Second {
			t.Errorf("%s took %v", what, took)
		}
		alone(what, err)
	}
	// An administrator's cancellation.
	cancelled := make(chan error, 1)
	go func() { cancelled <- patient.Write(ctx, put(t, "Patient", "p", "z")) }()
	primary.Await("SELECT coalesce(bool_or(pg_cancel_backend(a.pid)), false) FROM pg_stat_activity a WHERE a.wait_event = 'SyncRep'")
	alone("cancelled", <-cancelled)
	// So does a terminated backend: the connection breaks, and the version is there without its standby.
	go func() { cancelled <- s.Write(ctx, put(t, "Patient", "p", "t")) }()
	primary.Await("SELECT coalesce(bool_or(pg_terminate_backend(a.pid)), false) FROM pg_stat_activity a WHERE a.wait_event = 'SyncRep'")
	if err := <-cancelled; !outcome.Is(err, outcome.CodeTimeout) {
		t.Errorf("terminated: %v", err)
	}
	standby.Start()
	primary.Await("SELECT EXISTS (SELECT FROM pg_stat_replication WHERE sync_state = 'sync')")
	if v := write(t, s, put(t, "Patient", "p", "again")); v.VersionID != 5 {
		t.Errorf("version %d, want 5: what was not acknowledged is stored all the same", v.VersionID)
	}
}

// TestOldPrimaryReturns has a primary return beside the standby that has taken over. Neither a server that runs nor
// one that starts uses it.
func TestOldPrimaryReturns(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	primary := storetest.NewCluster(t)
	standby := primary.Standby("standby")
	url := storetest.URLOf(primary, standby)
	open := func(url string) *store.Store {
		first, err := store.PreferLatest(ctx, url)
		if err != nil {
			t.Fatal(err)
		}
		s := openAt(t, first)
		s.IndexBy(&renewing{store: s})
		return s
	}
	running := open(url)
	write(t, running, searchtest.NewWrite(t, []byte(`{"resourceType":"Patient","id":"p"}`)))
	standby.Follows(primary)
	primary.Stop()
	standby.Promote()
	primary.Start() // no server was on the new primary: its line has no epoch yet
	starting := open(url)
	for name, s := range map[string]*store.Store{"that starts": starting, "that runs": running} {
		var v string
		for deadline := time.Now().Add(30 * time.Second); ; {
			err := s.Write(ctx, searchtest.NewWrite(t, []byte(`{"resourceType":"Patient","id":"after-`+strings.ReplaceAll(name, " ", "-")+`"}`)))
			if v = standby.Query("SELECT count(*) FROM resource WHERE id LIKE 'after-that-" + strings.Fields(name)[1] + "'"); err == nil && v == "1" {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("the server %s does not write to the new primary: %v", name, err)
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
	// From now on nobody uses the old one, whatever becomes of connections.
	for range 3 {
		for _, s := range []*store.Store{starting, running} {
			s.Pool().Reset()
			write(t, s, searchtest.NewWrite(t, []byte(`{"resourceType":"Patient","id":"later"}`)))
		}
	}
	if n := primary.Query("SELECT count(*) FROM resource WHERE id = 'later'"); n != "0" {
		t.Errorf("%s resources are on the old primary", n)
	}
	if n := standby.Query("SELECT version FROM resource WHERE id = 'later'"); n != "6" {
		t.Errorf("version %s on the new primary, want 6", n)
	}
	hosts, err := store.ReadHosts(ctx, url)
	if err != nil || len(hosts) != 2 || !hosts[0].Writable || !hosts[1].Writable || hosts[0].Timeline != 1 || hosts[1].Timeline != 2 || hosts[1].Epoch <= hosts[0].Epoch {
		t.Errorf("hosts %+v, %v", hosts, err)
	}
}

// TestCommitsThatBreakOff kills backends while they commit. A write that is acknowledged is there, one that fails with
// transient is not, and each write is there once.
func TestCommitsThatBreakOff(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	primary := storetest.NewCluster(t)
	s := openAt(t, primary.URL())
	const writers, each = 8, 60
	type result struct {
		w   *store.Write
		err error
	}
	results := make(chan result, writers*each)
	var writing, killing sync.WaitGroup
	killing.Go(func() {
		for ctx.Err() == nil {
			primary.Exec("kiln", "SELECT pg_terminate_backend(a.pid) FROM pg_stat_activity a WHERE a.datname = 'kiln' AND a.pid <> pg_backend_pid() AND a.state <> 'idle'")
		}
	})
	for n := range writers {
		writing.Go(func() {
			for i := range each {
				w := post(t, "Patient", "x")
				var err error
				if (n+i)%2 == 0 {
					err = s.Write(ctx, w)
				} else {
					err = s.InTx(ctx, func(tx *store.Tx) error { return tx.Write(ctx, []*store.Write{w}) })
				}
				results <- result{w, err}
			}
		})
	}
	writing.Wait()
	cancel()
	killing.Wait()
	close(results)
	counts := make(map[outcome.Code]int)
	for r := range results {
		code := outcome.Code("")
		if o, ok := outcome.From(r.err); ok {
			code = o.Issues[0].Code
		} else if r.err != nil {
			t.Errorf("%v", r.err)
		}
		counts[code]++
		_, err := s.Read(t.Context(), "Patient", r.w.ID)
		switch {
		case code == "" && err != nil:
			t.Errorf("an acknowledged write: %v", err)
		case code == outcome.CodeTransient && !outcome.Is(err, outcome.CodeNotFound):
			t.Errorf("a write with transient is there: %v", err)
		case code != "" && code != outcome.CodeTransient && code != outcome.CodeTimeout:
			t.Errorf("the code %s: %v", code, r.err)
		}
	}
	t.Log("codes", counts)
	if counts[""] == 0 {
		t.Error("no write was acknowledged")
	}
}

// TestLeasesOverAPromotion has a promotion lose the leases of a job's part and of a reader, whose server goes on working.
// Another server gets the part: the first one stops, and its results are refused. The reader commits each change once.
func TestLeasesOverAPromotion(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	primary := storetest.NewCluster(t)
	standby := primary.Standby("standby")
	url := storetest.URLOf(primary, standby)
	a, b := openAt(t, url), openAt(t, url)
	primary.Exec("kiln", "CREATE TABLE seen (server text, rid bigint)")
	began, finish, lost := make(chan string, 9), make(chan struct{}), make(chan struct{})
	kind := func(server string) jobs.Kind {
		return jobs.Kind{Type: "test", Run: func(ctx context.Context, _ *jobs.Task) (jobs.Result, error) {
			began <- server
			select {
			case <-ctx.Done():
				if server == "a" {
					close(lost)
				}
			case <-finish:
			}
			return jobs.Result{Data: server}, nil
		}}
	}
	handled, handle := make(chan string, 9), make(chan struct{})
	handler := func(server string) store.Handler {
		return store.Handler{Handle: func(_ context.Context, changes []store.Change) (func(context.Context, pgx.Tx) error, error) {
			if handled <- server; server == "a" {
				select {
				case <-handle:
				case <-ctx.Done():
				}
			}
			return func(ctx context.Context, tx pgx.Tx) error {
				for _, c := range changes {
					if _, err := tx.Exec(ctx, "INSERT INTO seen VALUES ($1, $2)", server, c.Position.RID); err != nil {
						return err
					}
				}
				return nil
			}, nil
		}}
	}
	from := func(c chan string, want string) {
		t.Helper()
		select {
		case got := <-c:
			if got != want {
				t.Fatalf("server %s works, want %s", got, want)
			}
		case <-ctx.Done():
			t.Fatalf("server %s does not work", want)
		}
	}
	var working sync.WaitGroup
	defer working.Wait()
	defer cancel()
	coreA, coreB := newCore(a, kind("a")), newCore(b, kind("b"))
	feedA, feedB := newFeed(t, a, 50*time.Millisecond), newFeed(t, b, 50*time.Millisecond)
	job := &jobs.Job{Type: "test", Spec: []byte("{}"), Principal: []byte("{}")}
	if err := errors.Join(coreA.Add(ctx, job, jobs.Part{Spec: struct{}{}}), feedA.Add(ctx, "test")); err != nil {
		t.Fatal(err)
	}
	write(t, a, put(t, "Patient", "p", "x"))
	standby.Follows(primary)
	standby.CutOff()
	working.Go(func() { coreA.Run(ctx) })
	working.Go(func() { feedA.Run(ctx, "test", handler("a")) })
	from(began, "a")
	from(handled, "a")
	primary.Stop()
	standby.Promote()
	working.Go(func() { coreB.Run(ctx) })
	working.Go(func() { feedB.Run(ctx, "test", handler("b")) })
	from(began, "b")
	close(handle)
	standby.Await("SELECT EXISTS (SELECT FROM seen)")
	select {
	case <-lost:
	case <-ctx.Done():
		t.Fatal("the first server works on the part beside the second")
	}
	close(finish)
	standby.Await("SELECT EXISTS (SELECT FROM job WHERE state = 'done')")
	if results, err := coreB.Results(ctx, job.ID); err != nil || len(results) != 1 || string(results[0]) != `"b"` {
		t.Errorf("results %s, %v; want those of b", results, err)
	}
	if got := standby.Query("SELECT count(*) FROM seen"); got != "1" {
		t.Errorf("the change was committed %s times", got)
	}
}
