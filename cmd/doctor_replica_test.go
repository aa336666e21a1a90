package main

import (
	"encoding/json"
	"strings"
	"testing"

	"kiln/server/store/storetest"
)

// TestDoctorReplicas has an entry of each kind among the standbys of the configuration.
func TestDoctorReplicas(t *testing.T) {
	primary := storetest.NewCluster(t)
	standby := primary.Standby("standby")
	other := storetest.NewCluster(t)
	foreign := other.Standby("foreign")
	standby.Exec("kiln", "ALTER SYSTEM SET hot_standby_feedback = on")
	standby.Exec("kiln", "SELECT pg_reload_conf()")
	standby.Await("SELECT current_setting('hot_standby_feedback') = 'on'")
	nowhere := strings.Replace(primary.URL(), primary.Dir(), "/nowhere", 1)
	t.Setenv("KILN_DATABASE__READ_URLS", strings.Join([]string{standby.URL(), primary.URL(), foreign.URL(), nowhere}, ","))
	look := func() map[string]finding {
		out, _ := runCommand(t, "doctor", "--json", "--listen", "127.0.0.1:0", "--database-url", primary.URL())
		var found []finding
		if err := json.Unmarshal([]byte(out), &found); err != nil {
			t.Fatalf("%q: %v", out, err)
		}
		by := make(map[string]finding)
		for _, f := range found {
			by[f.What] = f
		}
		return by
	}
	found := look()
	for what, want := range map[string]struct {
		ok   bool
		says string
	}{"replica-1": {true, "hot_standby_feedback is on"}, "replica-2": {false, "not in recovery"}, "replica-3": {false, "another database"}, "replica-4": {false, "cannot be reached"}} {
		if f, there := found[what]; !there || f.OK != want.ok || !strings.Contains(f.Says, want.says) {
			t.Errorf("%s: %+v, want %+v", what, f, want)
		}
	}
	standby.Exec("kiln", "ALTER SYSTEM SET hot_standby_feedback = off")
	standby.Exec("kiln", "SELECT pg_reload_conf()")
	standby.Await("SELECT current_setting('hot_standby_feedback') = 'off'")
	primary.Exec("kiln", "INSERT INTO goose_db_version (version_id, is_applied) VALUES (99999, true)")
	standby.Follows(primary)
	if f := look()["replica-1"]; f.OK || !strings.Contains(f.Says, "schema has version 99999") {
		t.Errorf("another schema: %+v", f)
	}
	primary.Exec("kiln", "DELETE FROM goose_db_version WHERE version_id = 99999")
	standby.Follows(primary)
	if f := look()["replica-1"]; f.OK || !strings.Contains(f.Says, "hot_standby_feedback") {
		t.Errorf("without feedback: %+v", f)
	}
}
