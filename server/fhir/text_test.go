package fhir

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestFoldText(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"case", "CHALMERS", "chalmers"},
		{"accents, composed and decomposed", "Müller Mu\u0308ller", "muller muller"},
		{"letters with a stroke", "Øystein Łukasz Đorđe", "oystein lukasz dorde"},
		{"letters that are two", "Straße Æsop", "strasse aesop"},
		{"white space", "  Peter \t James\n", "peter james"},
		{"punctuation stays", "O'Neil-Smith, Jr.", "o'neil-smith, jr."},
		{"compatibility forms", "ﬁne Ｗide", "fine wide"},
		{"other scripts", "ΣΊΣΥΦΟΣ 李小龍", "σισυφοσ 李小龍"},
		{"nothing but marks", "\u0301", ""},
		{"plain", "already folded", "already folded"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := FoldText(tt.text); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestJoinText(t *testing.T) {
	tests := []struct {
		name string
		want string
		text []string
	}{
		{"white space and punctuation", "stjohn", []string{"St. John", "st john", "stjohn", "St.John", "ST-JOHN "}},
		{"a hyphen", "maryann", []string{"Mary-Ann", "maryann", "mary ann", "Mary\u2010Ann"}},
		{"an apostrophe, straight or not", "oneil", []string{"O'Neil", "O\u2019Neil", "oneil"}},
		{"punctuation at the ends", "eve", []string{"(Eve)", "'eve'", "eve."}},
		{"a street", "1oakstreet", []string{"1 Oak Street", "1 oak-street"}},
		{"between digits it stays", "5.5", []string{"5.5"}},
		{"signs are no punctuation", "c++", []string{"C++", "c + +"}},
		{"nothing but punctuation stays", "--", []string{"--", " -- "}},
		{"nothing at all", "", []string{"", " \t"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, text := range tt.text {
				if got := JoinText(text); got != tt.want {
					t.Errorf("%q: got %q, want %q", text, got, tt.want)
				}
			}
		})
	}
}

func FuzzFoldText(f *testing.F) {
	f.Add("Müller-Straße  3")
	f.Add("İstanbul Ǆ ǆ")
	f.Fuzz(func(t *testing.T, s string) {
		if !utf8.ValidString(s) {
			return
		}
		once := FoldText(s)
		if twice := FoldText(once); twice != once {
			t.Fatalf("%q folds to %q and then to %q", s, once, twice)
		}
		if strings.TrimSpace(once) != once || strings.Contains(once, "  ") {
			t.Fatalf("%q folds to %q, which has white space to spare", s, once)
		}
	})
}
