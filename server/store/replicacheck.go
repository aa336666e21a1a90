package store

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"

	"github.com/jackc/pgx/v5"

	"kiln/queries"
)

// ReplicaCheck is the result of CheckReplica.
type ReplicaCheck struct {
	Host     string
	LagBytes int64
	Feedback string // hot_standby_feedback: on or off
}

// attempts is how often CheckReplica connects: a load balancer shows itself by different answers.
const attempts = 4

// CheckReplica looks whether a URL leads to one standby of the primary's database, with the schema of this build. The error names
// the fault. A standby without hot_standby_feedback is an error as well: its queries are cancelled
// when the primary removes rows that they read.
func CheckReplica(ctx context.Context, primary, url string) (r ReplicaCheck, err error) {
	c, err := pgx.ParseConfig(url)
	if err != nil {
		return r, errors.New("its URL cannot be read")
	}
	r.Host = net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port)))
	var a seenReplica
	for n := range attempts {
		one, feedback, err := askOnce(ctx, c)
		switch {
		case err != nil:
			return r, fmt.Errorf("%s: %s", r.Host, reasonOf(err))
		case n > 0 && one.started != a.started:
			return r, fmt.Errorf("%s: different PostgreSQLs answer at this address: name each in an entry of its own", r.Host)
		}
		a, r.Feedback = one, feedback
	}
	var at int64
	var last Epoch
	err = withConn(ctx, primary, func(conn *pgx.Conn) error {
		if err := conn.QueryRow(ctx, "SELECT (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint").Scan(&at); err != nil {
			return err
		}
		list, err := ReadEpochs(ctx, primary)
		if err == nil {
			last = list[len(list)-1]
		}
		return err
	})
	switch {
	case err != nil:
		return r, errors.New("the primary cannot be asked for its place")
	case !a.recovers && a.system == last.SystemIdentifier && a.database == last.DatabaseOID:
		return r, fmt.Errorf("%s is not in recovery: it is the primary, and serves no reads as a replica", r.Host)
	case !a.recovers:
		return r, fmt.Errorf("%s is not in recovery: it is no standby", r.Host)
	case a.system != last.SystemIdentifier || a.database != last.DatabaseOID:
		return r, fmt.Errorf("%s is a standby of another database", r.Host)
	case a.schema != queries.Latest():
		return r, fmt.Errorf("%s: its schema has version %d, this build needs %d", r.Host, a.schema, queries.Latest())
	case a.epoch != last.ID:
		return r, fmt.Errorf("%s is not of the primary's epoch %d: it does not follow the present primary", r.Host, last.ID.Number())
	}
	r.LagBytes = max(0, at-int64(a.replayed))
	if r.Feedback != "on" {
		return r, fmt.Errorf("%s: hot_standby_feedback is %s: long searches on it are cancelled and repeated on the primary; set it to on", r.Host, r.Feedback)
	}
	return r, nil
}

func askOnce(ctx context.Context, c *pgx.ConnConfig) (a seenReplica, feedback string, err error) {
	conn, err := pgx.ConnectConfig(ctx, c)
	if err != nil {
		return a, "", err
	}
	defer closeQuietly(conn)
	if a, err = askReplica(ctx, conn); err == nil {
		err = conn.QueryRow(ctx, "SELECT current_setting('hot_standby_feedback')").Scan(&feedback)
	}
	return a, feedback, err
}
