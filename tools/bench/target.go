package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"

	"github.com/jackc/pgx/v5/pgxpool"
)

// target is the measured server: one that runs, or one started for the command, with its database if that is known.
type target struct {
	bench   *Bench
	db      *pgxpool.Pool // nil where the database is not known
	url     string        // of the database
	cluster *Cluster      // nil for a server that runs
	kiln    *Kiln
	// statements is how many of the dearest SQL statements to tell, 0 for none.
	statements int
	// profiles is the folder for CPU profiles of the server, "" for none.
	profiles string
}

// serverSettings are the settings of a private cluster, as of the PostgreSQL that Kiln starts: an eighth of the memory for
// buffers, few checkpoints, durable commits.
func serverSettings() []string {
	const mb = 1 << 20
	memory := max(memoryBytes(), 1<<30)
	return []string{
		fmt.Sprintf("shared_buffers=%dMB", min(memory/8, 4096*mb)/mb), fmt.Sprintf("effective_cache_size=%dMB", memory/2/mb),
		"max_wal_size=8GB", "min_wal_size=1GB", "checkpoint_timeout=15min", "autovacuum_naptime=20s", "jit=off",
		"max_connections=200", "wal_compression=lz4", "default_toast_compression=lz4", "random_page_cost=1.1",
	}
}

// target connects to --url, or starts a cluster and --kiln.
func (s *settings) target(ctx context.Context) (*target, error) {
	t := &target{url: s.databaseURL, statements: s.statements, profiles: s.profiles}
	fail := func(err error) (*target, error) {
		t.close()
		return nil, err
	}
	base, pid := s.url, s.serverPID
	if base == "" {
		var err error
		if t.url == "" {
			config := serverSettings()
			if s.statements > 0 {
				config = append(config, "shared_preload_libraries=pg_stat_statements", "track_io_timing=on")
			}
			if t.cluster, err = StartCluster(ctx, config); err != nil {
				return fail(err)
			}
			if t.url, err = t.cluster.CreateDatabase(ctx, "kiln"); err != nil {
				return fail(err)
			}
		}
		var flags []string
		if s.profiles != "" {
			flags = []string{"--pprof"}
		}
		if t.kiln, err = StartKiln(ctx, s.kiln, t.url, flags...); err != nil {
			return fail(err)
		}
		base, pid = t.kiln.URL, t.kiln.PID
	}
	client, err := NewClient(base, s.token)
	if err != nil {
		return fail(err)
	}
	if pid == 0 {
		pid = localListener(base)
	}
	t.bench = &Bench{Client: client, Watched: Watched{Server: pid}, Seed: s.seed, SampleSize: s.samples,
		Corpus: Corpus{Path: s.corpus, Limit: s.corpusLimit}}
	if t.url != "" {
		if t.db, err = openPool(ctx, t.url, 4); err != nil {
			return fail(err)
		}
		t.bench.Watched.Postmaster = postmasterOf(ctx, t.db)
		if s.statements > 0 {
			if _, err := t.db.Exec(ctx, `CREATE EXTENSION IF NOT EXISTS pg_stat_statements`); err != nil {
				return fail(fmt.Errorf("--statements needs pg_stat_statements: %w", err))
			}
		}
	}
	return t, nil
}

// localListener is the process behind a base URL on this machine, or 0.
func localListener(base string) int {
	u, err := url.Parse(base)
	if err != nil {
		return 0
	}
	if h := u.Hostname(); h != "localhost" && h != "127.0.0.1" && h != "::1" {
		return 0
	}
	port, _ := strconv.Atoi(u.Port())
	return listenerOf(port)
}

func (t *target) close() {
	if t.kiln != nil {
		t.kiln.Stop()
	}
	if t.db != nil {
		t.db.Close()
	}
	if t.cluster != nil {
		t.cluster.Stop()
	}
}

// measure runs a workload several times and sums it up.
func (t *target) measure(ctx context.Context, w Workload, l Load, runs int) (Result, error) {
	var before Volume
	var err error
	if t.statements > 0 && t.db != nil {
		if _, err := t.db.Exec(ctx, `SELECT pg_stat_statements_reset()`); err != nil {
			return Result{}, err
		}
	}
	if t.db != nil {
		if before, err = readVolume(ctx, t.db); err != nil {
			return Result{}, err
		}
	}
	if t.profiles != "" && t.kiln != nil {
		stop, err := t.profile(ctx, filepath.Join(t.profiles, w.Name+".pprof"))
		if err != nil {
			return Result{}, err
		}
		defer stop()
	}
	var all []*Measured
	var moved int64
	for i := range max(runs, 1) {
		l.Seed += uint64(i)
		m, err := t.bench.Run(ctx, w, l)
		if err != nil {
			return Result{}, err
		}
		moved += m.Resources
		all = append(all, m)
	}
	r := summarise(w.Name, l, all)
	if t.kiln != nil && r.All.Errors > 0 {
		fmt.Fprintf(os.Stderr, "%s: %d errors; the server's log ends with\n%s\n", w.Name, r.All.Errors, t.kiln.Log())
	}
	if t.statements > 0 {
		if r.Statements, err = readStatements(ctx, t.db, t.statements); err != nil {
			return Result{}, err
		}
	}
	// Warm-up writes too, but is not counted: only a workload without one is told.
	if t.db != nil && w.Writes && moved > 0 && (w.Finite || l.WarmUp == 0) {
		after, err := readVolume(ctx, t.db)
		if err != nil {
			return Result{}, fmt.Errorf("%s: %w", w.Name, err)
		}
		since := after.Since(before)
		wal, disk := float64(since.WAL)/float64(moved), float64(since.Disk)/float64(moved)
		r.WAL, r.Disk, r.Tables = &wal, &disk, map[string]float64{}
		for name, size := range since.Tables {
			r.Tables[name] = float64(size) / float64(moved)
		}
		for name, size := range since.Indexes {
			r.Tables[name] = float64(size) / float64(moved)
		}
	}
	return r, nil
}

// profile takes a CPU profile of the server's next five seconds. The function
// that it returns waits for its end.
func (t *target) profile(ctx context.Context, path string) (func(), error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	file, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, t.kiln.URL+"/debug/pprof/profile?seconds=5", nil)
	if err != nil {
		return nil, err
	}
	done := make(chan error, 1)
	go func() {
		resp, err := http.DefaultClient.Do(req)
		if err == nil {
			if resp.StatusCode != http.StatusOK {
				err = fmt.Errorf("the server gives no profile: %s", resp.Status)
			} else {
				_, err = io.Copy(file, resp.Body)
			}
			resp.Body.Close()
		}
		done <- err
	}()
	return func() {
		if err := <-done; err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		_ = file.Close() // a profile that is cut short does not open
	}, nil
}
