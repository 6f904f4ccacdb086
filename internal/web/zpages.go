package web

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/munnerz/goautoneg"
	"sigs.k8s.io/yaml"
)

// group is the API group of the structured forms of /flagz and /statusz.
const group = "config.k8s.io"

// page is a page as text, or as an object of a kind and version.
type page struct {
	kind   string
	text   func(io.Writer)
	object func(meta) any
}

// meta begins every structured page.
type meta struct {
	Kind       string   `json:"kind"`
	APIVersion string   `json:"apiVersion"`
	Metadata   metadata `json:"metadata"`
}

type metadata struct {
	Name string `json:"name"`
}

// ServeHTTP answers in the form that the request accepts.
func (p page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	form, ok := negotiate(r.Header.Values("Accept"), p.kind)
	if !ok {
		http.Error(w, fmt.Sprintf("must accept text/plain, or application/json or application/yaml with g=%s;v=v1beta1;as=%s",
			group, p.kind), http.StatusNotAcceptable)
		return
	}
	if form.version == "" {
		var b bytes.Buffer
		fmt.Fprintf(&b, "\n%s %s\nWarning: this text is for people; its format may change in any version.\n",
			component, strings.ToLower(p.kind))
		p.text(&b)
		writeBody(w, typeText, http.StatusOK, b.Bytes())
		return
	}
	body, err := form.marshal(p.object(meta{p.kind, group + "/" + form.version, metadata{component}}))
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if form.version != "v1beta1" {
		w.Header().Set("Warning", fmt.Sprintf("299 - %q", form.version+" of "+p.kind+" is deprecated, use v1beta1"))
	}
	writeBody(w, form.media, http.StatusOK, body)
}

func (f form) marshal(object any) ([]byte, error) {
	if f.media == typeYAML {
		return yaml.Marshal(object)
	}
	body, err := json.Marshal(object)
	return append(body, '\n'), err
}

func (o Options) flagz() page {
	return page{
		kind: "Flagz",
		text: func(w io.Writer) {
			for _, name := range slices.Sorted(maps.Keys(o.Flags)) {
				fmt.Fprintf(w, "%s=%s\n", name, o.Flags[name])
			}
		},
		object: func(m meta) any {
			return struct {
				meta
				Flags map[string]string `json:"flags,omitempty"`
			}{m, o.Flags}
		},
	}
}

func (o Options) statusz() page {
	return page{
		kind: "Statusz",
		text: func(w io.Writer) {
			up := int64(o.up().Seconds())
			fmt.Fprintf(w, "\nStarted: %s\n", o.Started.Format(time.UnixDate))
			fmt.Fprintf(w, "Up: %d hr %02d min %02d sec\n", up/3600, up/60%60, up%60)
			fmt.Fprintf(w, "Go version: %s\n", runtime.Version())
			fmt.Fprintf(w, "Binary version: %s\n", o.Version)
			fmt.Fprintf(w, "Emulation version: %s\n", o.Emulates)
			fmt.Fprintf(w, "Paths: %s\n", strings.Join(paths(), " "))
			fmt.Fprintf(w, "\n%s", o.Status())
		},
		object: func(m meta) any {
			return struct {
				meta
				StartTime        time.Time `json:"startTime"`
				UptimeSeconds    int64     `json:"uptimeSeconds"`
				GoVersion        string    `json:"goVersion"`
				BinaryVersion    string    `json:"binaryVersion"`
				EmulationVersion string    `json:"emulationVersion,omitempty"`
				Paths            []string  `json:"paths"`
			}{
				m, o.Started.UTC().Truncate(time.Second), int64(o.up().Seconds()), runtime.Version(), o.Version, o.Emulates,
				paths(),
			}
		},
	}
}

// up returns how long this process has run; never negative, even if the clock was set back.
func (o Options) up() time.Duration { return max(0, time.Since(o.Started)) }

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
