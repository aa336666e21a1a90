package settings_test

import (
	"testing"

	"kiln/server/settings"
)

// Contract, Configuration: no password is shown, wherever it stands.
func TestRedact(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ text, want string }{
		{"", ""},
		{"postgres://kiln@db/kiln", "postgres://kiln@db/kiln"},
		{"postgres://kiln:hunter2@db/kiln?sslmode=require", "postgres://kiln:xxxxx@db/kiln?sslmode=require"},
		{"postgres:///postgres?host=/run/pg&user=postgres&password=hunter2", "postgres:///postgres?host=/run/pg&user=postgres&password=xxxxx"},
		{"postgres://db/kiln?sslpassword=hunter2&PassWord=hunter2&pass%77ord=hunter2", "postgres://db/kiln?sslpassword=xxxxx&PassWord=xxxxx&pass%77ord=xxxxx"},
		{"https://user:hunter2@otlp.example.org:4318/v1?access_token=hunter2", "https://user:xxxxx@otlp.example.org:4318/v1?access_token=xxxxx"},
		{"host=db user=kiln password=hunter2 dbname=kiln", "host=db user=kiln password=xxxxx dbname=kiln"},
		{`host=db password = 'hun \' ter2' sslpassword=hun\ ter2 dbname=kiln`, `host=db password = xxxxx sslpassword=xxxxx dbname=kiln`},
		{"host=db password='hunter2 and more", "host=db password=xxxxx"},
		{"kiln:hunter2@db/kiln", "kiln:xxxxx@db/kiln"},
		{"postgres://kiln:hunter2/x@db/kiln", "postgres://…"},
		{"postgres://kiln:12/hunter2@db/kiln", "postgres://…"},
	} {
		if got := settings.Redact(tt.text); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.text, got, tt.want)
		}
	}
}
