package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Host is one PostgreSQL of a URL with several.
type Host struct {
	Host     string
	Port     uint16
	Err      error // it cannot be reached
	Writable bool
	Epoch    EpochID // the last one stored
	Timeline int     // of a writable one
	// Synchronous reports that commits wait for a standby.
	Synchronous bool
}

// String is the address of the Host.
func (h Host) String() string { return net.JoinHostPort(h.Host, strconv.Itoa(int(h.Port))) }

// compare orders the lines of two writable Hosts: the later one of two that were the same PostgreSQL once.
func (h Host) compare(other Host) int {
	return cmp.Or(cmp.Compare(h.Epoch, other.Epoch), cmp.Compare(h.Timeline, other.Timeline))
}

// hostTimeout bounds the connection to one of several hosts, where the URL does not: the next one is tried then.
const hostTimeout = time.Second

// hostsOf lists the hosts of a configuration without repetition: pgx has one with TLS and one without for sslmode=prefer.
func hostsOf(c *pgx.ConnConfig) (list []Host) {
	list = []Host{{Host: c.Host, Port: c.Port}}
	for _, f := range c.Fallbacks {
		if h := (Host{Host: f.Host, Port: f.Port}); !slices.Contains(list, h) {
			list = append(list, h)
		}
	}
	return list
}

// CountHosts returns the number of hosts of a configuration.
func CountHosts(c *pgx.ConnConfig) int { return len(hostsOf(c)) }

// ErrHosts is the error of CheckHosts.
var ErrHosts = errors.New("it has several hosts and needs target_session_attrs=read-write or target_session_attrs=primary")

// CheckHosts fails with ErrHosts where a URL has several hosts and does not ask for the primary among them.
func CheckHosts(url string) error {
	c, err := pgx.ParseConfig(url)
	if err != nil || len(hostsOf(c)) == 1 {
		return err
	}
	is := reflect.ValueOf(c.ValidateConnect).Pointer()
	for _, f := range []pgconn.ValidateConnectFunc{pgconn.ValidateConnectTargetSessionAttrsReadWrite, pgconn.ValidateConnectTargetSessionAttrsPrimary} {
		if is == reflect.ValueOf(f).Pointer() {
			return nil
		}
	}
	return ErrHosts
}

// ReadHosts asks each PostgreSQL of a URL at the same time.
func ReadHosts(ctx context.Context, url string) ([]Host, error) {
	c, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	list := hostsOf(c)
	var asking sync.WaitGroup
	for i := range list {
		asking.Go(func() { list[i].read(ctx, c) })
	}
	asking.Wait()
	return list, nil
}

// read asks the Host, by the settings of a configuration.
func (h *Host) read(ctx context.Context, c *pgx.ConnConfig) {
	c = c.Copy()
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(c.ConnectTimeout, 2*hostTimeout))
	defer cancel()
	of := c.Fallbacks
	c.ValidateConnect, c.Fallbacks = nil, nil
	if c.Host != h.Host || c.Port != h.Port {
		for _, f := range of {
			if f.Host == h.Host && f.Port == h.Port {
				c.Host, c.Port, c.TLSConfig = f.Host, f.Port, f.TLSConfig
				break
			}
		}
	}
	for _, f := range of { // sslmode=prefer
		if f.Host == h.Host && f.Port == h.Port {
			c.Fallbacks = append(c.Fallbacks, f)
		}
	}
	conn, err := pgconn.ConnectConfig(ctx, &c.Config)
	if err != nil {
		h.Err = err
		return
	}
	defer conn.Close(context.WithoutCancel(ctx))
	h.Err = h.readFrom(ctx, conn)
}

// readFrom asks on a connection. A database without schema is before all epochs.
func (h *Host) readFrom(ctx context.Context, conn *pgconn.PgConn) error {
	text := func(sql string) (string, error) {
		r, err := conn.Exec(ctx, sql).ReadAll()
		if err != nil || len(r) == 0 || len(r[0].Rows) == 0 {
			return "", err
		}
		return string(r[0].Rows[0][0]), nil
	}
	state, err := text(`SELECT concat_ws(' ', current_setting('transaction_read_only') = 'off' AND NOT pg_is_in_recovery(),
		CASE WHEN pg_is_in_recovery() THEN 0 ELSE ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::integer END,
		current_setting('synchronous_standby_names') <> '' AND current_setting('synchronous_commit') IN ('on', 'remote_apply'),
		to_regclass('epoch') IS NOT NULL)`)
	if err != nil {
		return err
	}
	var writable, synchronous, migrated string
	if _, err := fmt.Sscan(state, &writable, &h.Timeline, &synchronous, &migrated); err != nil {
		return fmt.Errorf("read the state of a host: %q: %w", state, err)
	}
	h.Writable, h.Synchronous = writable == "t", synchronous == "t"
	if migrated != "t" {
		return nil
	}
	epoch, err := text("SELECT max(e.epoch) FROM epoch e")
	if err == nil && epoch != "" {
		var n int64
		n, err = strconv.ParseInt(epoch, 10, 64)
		h.Epoch = EpochID(n)
	}
	return err
}

// latest returns the writable Host of the latest line, nil where none is writable.
func latest(list []Host) (last *Host) {
	for i := range list {
		if h := &list[i]; h.Err == nil && h.Writable && (last == nil || h.compare(*last) > 0) {
			last = h
		}
	}
	return last
}

// PreferLatest returns a URL with its hosts in another order: the writable one of the latest line first. An old primary that
// has returned takes writes as well, and may be the first in the URL. A URL with one host stays as it is.
func PreferLatest(ctx context.Context, text string) (string, error) {
	list, err := ReadHosts(ctx, text)
	if err != nil || len(list) == 1 {
		return text, err
	}
	last := latest(list)
	if last == nil || *last == list[0] {
		return text, nil
	}
	var hosts, ports, both []string
	for _, h := range append([]Host{*last}, slices.DeleteFunc(slices.Clone(list), func(h Host) bool { return h.Host == last.Host && h.Port == last.Port })...) {
		hosts, ports, both = append(hosts, h.Host), append(ports, strconv.Itoa(int(h.Port))), append(both, h.String())
	}
	if !strings.Contains(text, "://") { // keywords: the last one counts
		return text + " host=" + strings.Join(hosts, ",") + " port=" + strings.Join(ports, ","), nil
	}
	u, err := url.Parse(text)
	if err != nil {
		return text, nil
	}
	if q := u.Query(); q.Has("host") {
		q.Set("host", strings.Join(hosts, ","))
		q.Set("port", strings.Join(ports, ","))
		u.RawQuery = q.Encode()
	} else {
		u.Host = strings.Join(both, ",")
	}
	return u.String(), nil
}

// hostWatch looks after the hosts of a URL with several: a server uses the writable one of the latest line.
type hostWatch struct {
	mu    sync.Mutex
	least Host // the latest line that was seen
	told  string
	stop  context.CancelFunc
	done  sync.WaitGroup
}

// hostsEvery is the time between two looks at the hosts.
const hostsEvery = 2 * time.Second

// useHosts makes a configuration try the next host where one is of a line before the latest.
func (s *Store) useHosts(c *pgx.ConnConfig) {
	if len(hostsOf(c)) == 1 {
		return
	}
	c.ConnectTimeout = cmp.Or(c.ConnectTimeout, hostTimeout)
	before := c.ValidateConnect
	c.ValidateConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		if before != nil {
			if err := before(ctx, conn); err != nil {
				return err
			}
		}
		var h Host
		if err := h.readFrom(ctx, conn); err != nil {
			return err
		}
		return s.hosts.admit(h)
	}
}

// admit fails for a line before the latest.
func (w *hostWatch) admit(h Host) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch c := h.compare(w.least); {
	case c < 0:
		return errOldPrimary
	case c > 0:
		w.least = h
	}
	return nil
}

// start looks at the hosts until stop.
func (w *hostWatch) start(s *Store, url string) {
	ctx, cancel := context.WithCancel(context.Background())
	w.stop = cancel
	if c, err := pgx.ParseConfig(url); err != nil || len(hostsOf(c)) == 1 {
		return
	}
	w.done.Go(func() {
		for SleepFor(ctx, hostsEvery) {
			if list, err := ReadHosts(ctx, url); err == nil && ctx.Err() == nil {
				w.look(s, list)
			}
		}
	})
}

// look takes up a writable host of a later line, and logs where there are two.
func (w *hostWatch) look(s *Store, list []Host) {
	last := latest(list)
	if last == nil {
		return
	}
	w.mu.Lock()
	later := last.compare(w.least) > 0
	if later {
		w.least = Host{Epoch: last.Epoch, Timeline: last.Timeline}
	}
	var others []string
	for _, h := range list {
		if h.Err == nil && h.Writable && h != *last {
			others = append(others, h.String())
		}
	}
	tell := strings.Join(others, ", ")
	changed := tell != w.told
	w.told = tell
	w.mu.Unlock()
	if later { // connections to the one before end when they are given back
		s.pool.Reset()
		s.side.Reset()
	}
	if changed && tell != "" {
		s.log.Error("several hosts of database.url take writes; the one of the latest epoch is used", "used", last.String(), "others", tell)
	}
}
