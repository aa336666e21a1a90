package smart

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Contract, Authorization 4: grammar: v2 with `?search`, v1 `.read` = `rs`, `.write` = `cud`, `.*` = `cruds`,
// `*.*`.
func TestParseScope(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       Scope
	}{
		{"version 2", "patient/Observation.rs", Scope{Patient, "Observation", Read | Search, ""}},
		{"every letter", "user/Patient.cruds", Scope{User, "Patient", All, ""}},
		{"one letter", "system/Task.d", Scope{System, "Task", Delete, ""}},
		{"every type", "system/*.rs", Scope{System, "*", Read | Search, ""}},
		{"version 1 read", "patient/Condition.read", Scope{Patient, "Condition", Read | Search, ""}},
		{"version 1 write", "user/*.write", Scope{User, "*", Create | Update | Delete, ""}},
		{"version 1 everything", "system/*.*", Scope{System, "*", All, ""}},
		{"granular", "patient/Observation.rs?category=http://x|laboratory&status=final",
			Scope{Patient, "Observation", Read | Search, "category=http://x|laboratory&status=final"}},
		{"a dot in the search", "patient/Observation.rs?code=1.2", Scope{Patient, "Observation", Read | Search, "code=1.2"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseScope(tt.text)
			if err != nil || got != tt.want {
				t.Errorf("ParseScope(%q) = %+v, %v, want %+v", tt.text, got, err, tt.want)
			}
		})
	}
}

// Contract, Authorization 4: grammar: malformed scopes.
func TestParseScopeMalformed(t *testing.T) {
	for _, text := range []string{
		"", "patient", "patient/", "patient/Observation", "patient/Observation.", "patient/.rs", "/Observation.rs",
		"Observation.rs", "patients/Observation.rs", "Patient/Observation.rs", "launch/Observation.rs",
		"patient/observation.rs", "patient/Obs3.rs", "patient/Observation.sr", "patient/Observation.rr", "patient/Observation.x",
		"patient/Observation.READ", "patient/Observation.rs.", "patient/Observation.readwrite", "patient/**.rs", "patient/*Patient.rs",
		"patient/Observation.rs?", "patient/Observation.rs?=x", "patient/Observation.rs?a=%zz", "patient/Observation.read?code=x",
		"patient/*.*?code=x", "patient/Observation.rs ", " patient/Observation.rs", "patient/Observation.rs?code=\"x", `patient/Observation.rs?code=\x`,
		"patient/Observation.rs?code=é", "patient/Observation.rs\x00", "patient//Observation.rs", "patient/Observation/1.rs",
		"patient/Observation.rs?code=" + strings.Repeat("x", maxScope),
	} {
		if got, err := ParseScope(text); err == nil {
			t.Errorf("ParseScope(%q) = %+v, want an error", text, got)
		}
	}
}

func TestParse(t *testing.T) {
	got, err := Parse("openid fhirUser launch/patient patient/*.read patient/*.rs openid  offline_access launch/imagingstudy email")
	want := Scopes{
		Resource: []Scope{{Patient, "*", Read | Search, ""}},
		Other:    []string{"openid", "fhirUser", "launch/patient", "offline_access", "launch/imagingstudy", "email"},
	}
	if err != nil || !cmp.Equal(got, want) {
		t.Errorf("Parse: %v\n%s", err, cmp.Diff(want, got))
	}
	if text := got.String(); text != "openid fhirUser launch/patient offline_access launch/imagingstudy email patient/*.rs" {
		t.Errorf("String() = %q", text)
	}
	if got, err := Parse(""); err != nil || !got.Empty() {
		t.Errorf(`Parse("") = %+v, %v`, got, err)
	}
	for _, list := range []string{
		"openid patient/Observation", "foo/Observation.rs", "openid\tprofile", "openid\nprofile", "patient/*.sr", "launch/", "launch/patient/x",
		"Observation.read", "patient/*.rs,patient/*.c", "-x", "https://x\"", strings.Repeat("openid ", maxScopes+1),
	} {
		if got, err := Parse(list); err == nil {
			t.Errorf("Parse(%.40q) = %+v, want an error", list, got)
		}
	}
}

// Contract, Authorization 2: a registered scope covers narrower ones.
func TestCovers(t *testing.T) {
	for _, tt := range []struct {
		name, wider, narrower string
		want                  bool
	}{
		{"itself", "patient/Observation.rs", "patient/Observation.rs", true},
		{"every type covers one", "patient/*.cruds", "patient/Observation.rs", true},
		{"one type does not cover every", "patient/Observation.cruds", "patient/*.rs", false},
		{"another type", "patient/Condition.rs", "patient/Observation.rs", false},
		{"a letter too many", "patient/*.r", "patient/Observation.rs", false},
		{"another context", "user/*.cruds", "patient/Observation.rs", false},
		{"system is not user", "system/*.cruds", "user/Observation.rs", false},
		{"version 1 covers version 2", "patient/*.read", "patient/Observation.s", true},
		{"version 1 write has no search", "patient/*.write", "patient/Observation.cs", false},
		{"two together", "patient/*.r patient/Observation.s", "patient/Observation.rs", true},
		{"two that are not enough", "patient/*.r patient/Condition.s", "patient/Observation.rs", false},
		{"whole covers granular", "patient/Observation.rs", "patient/Observation.rs?category=laboratory", true},
		{"granular does not cover whole", "patient/Observation.rs?category=laboratory", "patient/Observation.rs", false},
		{"granular covers itself", "patient/Observation.rs?category=laboratory", "patient/Observation.r?category=laboratory", true},
		{"granular covers what has more conditions", "patient/Observation.rs?category=laboratory", "patient/Observation.rs?status=final&category=laboratory", true},
		{"another condition", "patient/Observation.rs?category=laboratory", "patient/Observation.rs?category=vital-signs", false},
		{"other scopes by name", "openid launch/patient", "launch/patient", true},
		{"launch is not launch/patient", "launch", "launch/patient", false},
		{"admin is no resource scope", "admin", "system/*.rs", false},
		{"every resource is not admin", "system/*.*", "admin", false},
		{"malformed", "patient/*.*", "patient/Observation", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			wider, err := Parse(tt.wider)
			if err != nil {
				t.Fatal(err)
			}
			if got := wider.Covers(tt.narrower); got != tt.want {
				t.Errorf("%q covers %q: %v, want %v", tt.wider, tt.narrower, got, tt.want)
			}
			if narrower, err := Parse(tt.narrower); err == nil && narrower.Within(wider) != tt.want {
				t.Errorf("%q within %q: %v, want %v", tt.narrower, tt.wider, !tt.want, tt.want)
			}
		})
	}
}

// Contract, Authentication 8: consent decisions persist.
func TestDecided(t *testing.T) {
	for _, test := range []struct{ name, before, asked, chosen, want string }{
		{"nothing before", "", "openid patient/*.rs", "openid", "openid"},
		{"what is not asked for stays", "openid patient/Observation.rs", "launch patient/Condition.rs", "launch patient/Condition.rs", "launch openid patient/Condition.rs patient/Observation.rs"},
		{"what is refused goes", "openid launch patient/Observation.rs", "openid patient/Observation.rs", "openid", "openid launch"},
		{"of a wider scope too", "patient/*.cruds", "openid patient/Observation.rs", "openid", "openid patient/*.cud"},
		{"of a narrower scope too", "patient/Observation.rs user/*.rs", "openid patient/*.s", "openid", "openid user/*.rs patient/Observation.r"},
		{"of a granular scope too", "patient/Observation.rs?category=x", "openid patient/Observation.rs", "openid", "openid"},
		{"a wider choice takes the place of a narrower one", "patient/Observation.rs", "patient/*.rs", "patient/*.rs", "patient/*.rs"},
	} {
		t.Run(test.name, func(t *testing.T) {
			read := func(text string) Scopes {
				s, err := Parse(text)
				if err != nil {
					t.Fatal(err)
				}
				return s
			}
			got := read(test.before).Decided(read(test.asked), read(test.chosen))
			if want := read(test.want); !got.Within(want) || !want.Within(got) {
				t.Errorf("%s, want %s", got, test.want)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"patient/Observation.rs?category=http://x|y openid", "user/*.cruds", "system/*.*", "launch/patient", "patient/*.read", "https://x/y", "a/b.c?d",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, list string) {
		scopes, err := Parse(list)
		if err != nil {
			return
		}
		again, err := Parse(scopes.String())
		if err != nil || !cmp.Equal(scopes, again) {
			t.Fatalf("Parse(%q).String() = %q is read as %+v, %v", list, scopes.String(), again, err)
		}
		if !scopes.Within(scopes) {
			t.Fatalf("%q does not cover itself", list)
		}
		for _, r := range scopes.Resource {
			if !scopes.Covers(r.String()) || !r.Covers(r) || r.Permissions == 0 || r.Permissions&^All != 0 {
				t.Fatalf("%q: %+v", list, r)
			}
		}
	})
}
