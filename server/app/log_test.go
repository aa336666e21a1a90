package app

import (
	"testing"
	"time"

	"kiln/server/store"
	"kiln/server/store/storetest"
)

// The contract, Apps section 6: the log is kept for apps.log_retention_days, and bounded for each App.
func TestAppLogIsBounded(t *testing.T) {
	t.Parallel()
	data, err := store.Open(t.Context(), store.Config{URL: storetest.New(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(data.Close)
	p := &Platform{Store: data, Now: time.Now, Config: func() Config { return Config{LogRetention: 7 * 24 * time.Hour} }}
	const old, extra = 50, 30
	insert := func(app, at string, count int) {
		t.Helper()
		_, err := data.Pool().Exec(t.Context(), `INSERT INTO app_invocation
			SELECT gen_random_uuid(), $1, `+at+`, 'op', '', 'Patient', 'p', 1, 'ok', 200, 'r', 0, '[]' FROM generate_series(1, $2) n`, app, count)
		if err != nil {
			t.Fatal(err)
		}
	}
	count := func(app string) (n int) {
		t.Helper()
		if err := data.Pool().QueryRow(t.Context(), `SELECT count(*) FROM app_invocation WHERE app = $1`, app).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	insert("quiet", "now() - interval '8 days'", old)
	insert("quiet", "now() - interval '6 days'", old)
	insert("loud", "now() - n * interval '1 millisecond'", keptInvocations+extra)
	if err := p.Retain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := count("quiet"); n != old {
		t.Errorf("%d entries of a quiet App, want those of the last week, %d", n, old)
	}
	if n := count("loud"); n != keptInvocations {
		t.Errorf("%d entries of a loud App, want %d", n, keptInvocations)
	}
}
