package console

import (
	"encoding/xml"
	"html/template"
	"net/url"
	"strings"
)

// narrativeElements are the elements of a narrative that R4 allows, without images.
// Spec: https://hl7.org/fhir/R4/narrative.html#xhtml.
var narrativeElements = setOf(`a abbr acronym b big blockquote br caption cite code col colgroup dd dfn div dl dt em h1 h2 h3 h4 h5 h6 hr i li ol p pre q
	samp small span strong sub sup table tbody td tfoot th thead tr tt ul var`)

// narrativeAttributes are those that are kept. Others could imitate the page or change its layout.
var narrativeAttributes = setOf("title abbr colspan rowspan span headers scope start value type cite lang dir")

func setOf(words string) map[string]bool {
	out := make(map[string]bool)
	for _, w := range strings.Fields(words) {
		out[w] = true
	}
	return out
}

// void elements have no end tag.
var void = setOf("br hr col")

// cleanNarrative returns the XHTML of a narrative as HTML that can do nothing but be read. A heading becomes bold text, so
// that it does not change the outline of the page.
func cleanNarrative(div string) template.HTML {
	var b strings.Builder
	d := xml.NewDecoder(strings.NewReader(div))
	d.Strict = false
	d.Entity = xml.HTMLEntity
	var open []string // the HTML element of each open one, "" for one that is left out
	for {
		t, err := d.Token()
		if err != nil {
			break
		}
		switch t := t.(type) {
		case xml.StartElement:
			name := strings.ToLower(t.Name.Local)
			if !narrativeElements[name] || len(open) > 200 {
				if name == "script" || name == "style" || name == "iframe" || name == "object" || name == "svg" || name == "math" {
					_ = d.Skip()
					continue
				}
				open = append(open, "")
				continue
			}
			if len(name) == 2 && name[0] == 'h' && name[1] >= '1' && name[1] <= '6' {
				name = "strong"
			}
			b.WriteString("<" + name)
			for _, a := range t.Attr {
				attribute := strings.ToLower(a.Name.Local)
				switch {
				case name == "a" && attribute == "href":
					if link := safeLink(a.Value); link != "" {
						b.WriteString(` href="` + template.HTMLEscapeString(link) + `" rel="noopener noreferrer"`)
					}
				case narrativeAttributes[attribute] && a.Name.Space == "":
					b.WriteString(" " + attribute + `="` + template.HTMLEscapeString(a.Value) + `"`)
				}
			}
			b.WriteString(">")
			if void[name] {
				name = ""
			}
			open = append(open, name)
		case xml.EndElement:
			if len(open) == 0 {
				continue
			}
			if name := open[len(open)-1]; name != "" {
				b.WriteString("</" + name + ">")
			}
			open = open[:len(open)-1]
		case xml.CharData:
			b.WriteString(template.HTMLEscapeString(string(t)))
		}
	}
	for i := len(open) - 1; i >= 0; i-- {
		if open[i] != "" {
			b.WriteString("</" + open[i] + ">")
		}
	}
	return template.HTML(b.String()) //nolint:gosec // every name is from a list, every value is escaped
}

// safeLink is a link of stored data, "" where it is none that may be followed: http, https, mailto and tel.
func safeLink(text string) string {
	u, err := url.Parse(strings.TrimSpace(text))
	if err != nil {
		return ""
	}
	switch strings.ToLower(u.Scheme) {
	case "http", "https":
		if u.Host == "" {
			return ""
		}
	case "mailto", "tel":
	default:
		return ""
	}
	return u.String()
}
