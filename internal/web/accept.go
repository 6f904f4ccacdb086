package web

import (
	"strings"

	"github.com/munnerz/goautoneg"
)

// form is a form of a page; without a version it is text for people.
type form struct{ media, version string }

// negotiate returns the available form with the highest weight; false if none is
// acceptable. Without an Accept header it is text.
func negotiate(accept []string, kind string) (form, bool) {
	header := strings.Join(accept, ",")
	if strings.TrimSpace(header) == "" {
		return form{media: typeText}, true
	}
	for _, clause := range goautoneg.ParseAccept(header) {
		if f, ok := formOf(clause, kind); ok && clause.Q > 0 {
			return f, true
		}
	}
	return form{}, false
}

// formOf returns the form that a clause of an Accept header requests, if the kind has it.
func formOf(c goautoneg.Accept, kind string) (form, bool) {
	group0, version, as := c.Params["g"], c.Params["v"], c.Params["as"]
	plain := group0 == "" && version == "" && as == ""
	switch media := c.Type + "/" + c.SubType; media {
	case "text/plain", "text/*", "*/*":
		return form{media: typeText}, plain
	case typeJSON, typeYAML:
		known := version == "v1beta1" || version == "v1alpha1"
		return form{media, version}, group0 == group && known && as == kind
	}
	return form{}, false
}
