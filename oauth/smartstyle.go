package oauth

import (
	"net/http"

	"kiln/oauth/storage"
)

// stylePath is where smart_style_url leads to for a launch that names no other style.
const stylePath = "/auth/smart-style.json"

// smartStyle is how an app may look inside of Kiln: the colours of its light pages.
// SMART App Launch 2.2, Styling.
var smartStyle = map[string]string{
	"color_background":     "#ffffff",
	"color_error":          "#9c1c1c",
	"color_highlight":      "#0b57a4",
	"color_modal_backdrop": "#1b1f24",
	"color_success":        "#1b6e3c",
	"color_text":           "#1b1f24",
	"dim_border_radius":    "8px",
	"dim_font_size":        "16px",
	"dim_spacing_size":     "16px",
	"font_family_body":     "system-ui, sans-serif",
	"font_family_heading":  "system-ui, sans-serif",
}

// addStyle completes the context of an EHR launch with a patient: the app shows the
// patient's name unless the launch says otherwise, and finds a style.
// SMART App Launch 2.2, launch context arrives with your access token.
func (s *Server) addStyle(c *storage.Context) {
	if c.NeedPatientBanner == nil {
		c.NeedPatientBanner = new(true)
	}
	if c.SmartStyleURL == "" {
		c.SmartStyleURL = s.Issuer + stylePath
	}
}

// serveSmartStyle is GET /auth/smart-style.json.
func (s *Server) serveSmartStyle(w http.ResponseWriter, r *http.Request) {
	style := make(map[string]string, len(smartStyle))
	for name, value := range smartStyle {
		style[name] = value
	}
	if light, _ := s.pageColours(); light != "" {
		style["color_highlight"] = light
	}
	writeCached(w, r, style)
}
