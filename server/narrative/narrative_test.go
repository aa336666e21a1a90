package narrative

import (
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	div := func(s string) string { return `<div xmlns="http://www.w3.org/1999/xhtml">` + s + `</div>` }
	tests := []struct{ name, in, want string }{
		{"text", div("a"), ""},
		{"nested elements", div(`<p>a<br/>b <b>c</b></p><table><tr><td rowspan="2">d</td></tr></table>`), ""},
		{"an image is content", div(`<img src="#a" alt="x"/>`), ""},
		{"entities", div("a &lt; b &#169; &quot;&apos;&gt;&amp; &#xA9;"), ""},
		{"an entity of HTML", div("a&nbsp;b"), "is no entity of XML"},
		{"an entity of HTML in an attribute", div(`<p title="&copy;">a</p>`), "is no entity of XML"},
		{"a reference to no character", div("&#0;"), "is no character reference"},
		{"a reference without a number", div("&#x;"), "is no character reference"},
		{"a comment", div("<!-- <script> -->a"), ""},
		{"single quotes and a language", `<div xmlns='http://www.w3.org/1999/xhtml' xml:lang="en" lang="en">a</div>`, ""},
		{"white space around", "\n " + div("a") + "\n", ""},
		{"a link", div(`<a href="https://x.org/?a=b&amp;c">a</a>`), ""},
		{"no namespace", "<div>a</div>", "does not name the XHTML namespace"},
		{"another namespace", `<div xmlns="urn:x">a</div>`, "not XHTML"},
		{"another root", `<p xmlns="http://www.w3.org/1999/xhtml">a</p>`, "one div element"},
		{"two roots", div("a") + div("b"), "one div element"},
		{"text before", "a" + div("b"), "one div element"},
		{"nothing", "", "one div element"},
		{"white space only", div(" \n&#160;<br/><![CDATA[ ]]>"), "no content"},
		{"an empty tag", `<div xmlns="http://www.w3.org/1999/xhtml"/>`, "no content"},
		{"an empty div", div(""), "no content"},
		{"text behind an empty tag", `<div xmlns="http://www.w3.org/1999/xhtml"/>a`, "one div element"},
		{"a script", div("<script>a</script>"), "<script> is not allowed"},
		{"a form", div("<form><input/></form>"), "<form> is not allowed"},
		{"an event", div(`<p onclick="x()">a</p>`), "attribute onclick is not allowed"},
		{"a script in a link", div(`<a href=" JavaScript:x()">a</a>`), "runs a script"},
		{"a script behind references", div(`<a href="java&#115;cript&#58;x()">a</a>`), "runs a script"},
		{"open element", div("<p>a"), "</div> closes nothing that is open"},
		{"open root", `<div xmlns="http://www.w3.org/1999/xhtml">a`, "<div> is not closed"},
		{"a bare ampersand", div("a & b"), "starts no character reference"},
		{"no quotes", div("<p class=a>b</p>"), "has no quotes"},
		{"an attribute twice", div(`<p class="a" class="b">c</p>`), "has class twice"},
		{"a declaration", `<!DOCTYPE div>` + div("a"), "not allowed"},
		{"too deep", div(strings.Repeat("<b>", 600)), "nested deeper than 500"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := Check(tt.in)
			switch {
			case err == nil && tt.want != "":
				t.Errorf("accepted, want %q", tt.want)
			case err != nil && (tt.want == "" || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("got %v, want %q", err, tt.want)
			}
			if e, ok := err.(*Error); ok && (e.Rule == "txt-2") != (tt.want == "no content") {
				t.Errorf("%q is against %s", tt.in, e.Rule)
			}
		})
	}
}

func FuzzCheck(f *testing.F) {
	f.Add(`<div xmlns="http://www.w3.org/1999/xhtml"><p class='a'>b&amp;<!-- c --></p></div>`)
	f.Fuzz(func(t *testing.T, s string) {
		if Check(s) == nil && strings.Contains(strings.ToLower(s), "<script") && !strings.Contains(s, "<!") {
			t.Errorf("accepts %q", s)
		}
	})
}
