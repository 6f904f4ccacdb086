// Package web has the HTTP pages of Sluice, which are compatible with kube-proxy's:
// health, metrics and diagnostics; and a Server that serves them at an address.
package web

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/pprof"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/internal/health"
)

// Health serves the pages healthz and livez, for every method, and passes the status of each answer to count.
func Health(verdict func() health.Verdict, count func(page string, code int)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/healthz":
			v := verdict()
			r := report(v, v.Programmed(), &v.Eligible)
			r.Reason = v.Summary().Reason
			count("healthz", r.write(w))
		case "/livez":
			v := verdict()
			count("livez", report(v, v.Live, nil).write(w))
		default:
			http.NotFound(w, r)
		}
	})
}

// healthReport is the body; load balancers of some clouds read it.
type healthReport struct {
	LastUpdated  time.Time               `json:"lastUpdated"`
	CurrentTime  time.Time               `json:"currentTime"`
	NodeEligible *bool                   `json:"nodeEligible,omitempty"`
	Healthy      bool                    `json:"healthy"`
	Reason       string                  `json:"reason,omitempty"` // not in kube-proxy's
	Status       map[string]familyReport `json:"status,omitempty"`
}

type familyReport struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

// report makes the body; eligible is nil if the page leaves the Node out.
func report(v health.Verdict, healthy bool, eligible *bool) healthReport {
	r := healthReport{LastUpdated: v.LastUpdated, CurrentTime: v.Now, NodeEligible: eligible, Healthy: healthy}
	for _, f := range v.Families {
		if r.Status == nil {
			r.Status = map[string]familyReport{}
		}
		r.Status[f.String()] = familyReport{v.LastUpdated, healthy}
	}
	if r.code() == http.StatusOK {
		r.LastUpdated = v.Now // no change waits, so the rules are as of now
	}
	return r
}

func (r healthReport) code() int {
	if !r.Healthy || r.NodeEligible != nil && !*r.NodeEligible {
		return http.StatusServiceUnavailable
	}
	return http.StatusOK
}

func (r healthReport) write(w http.ResponseWriter) int {
	body, err := json.Marshal(r)
	if err != nil { // a year of five digits
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return http.StatusInternalServerError
	}
	writeBody(w, typeJSON, r.code(), body)
	return r.code()
}

// The media types of answers.
const (
	typeText = "text/plain; charset=utf-8"
	typeJSON = "application/json"
	typeYAML = "application/yaml"
)

func writeBody(w http.ResponseWriter, mediaType string, code int, body []byte) {
	w.Header().Set("Content-Type", mediaType)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = w.Write(body) // fails if the client closed the connection
}

// Options for Diagnostics. All are needed, SetVerbosity only for Profiling.
type Options struct {
	Mode   string            // the data plane
	Config []byte            // the configuration in force: KubeProxyConfiguration v1alpha1 as JSON
	Flags  map[string]string // the command line: every flag with its value

	Metrics, SLIs http.Handler
	Page          http.Handler // for people, at /; it gets GET and HEAD
	Checked       func()       // called at each request of /healthz

	Version  string        // of this program
	Emulates string        // the version of Kubernetes whose kube-proxy it replaces, such as "1.37"
	Started  time.Time     // this process
	Status   func() string // the end of /statusz

	// SetVerbosity sets the verbosity of the log. Profiling adds pprof and a page to set the verbosity.
	SetVerbosity func(level int)
	Profiling    bool
}

// component is the name that tools expect on the pages of kube-proxy.
const component = "kube-proxy"

// Diagnostics serves all pages of kube-proxy's metrics server. It requires no
// authentication: use it at an address that only the node itself reaches.
func Diagnostics(o Options) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /{$}", o.Page)
	mux.HandleFunc("/healthz", o.healthz)
	mux.HandleFunc("/healthz/ping", text("ok"))
	mux.HandleFunc("/proxyMode", text(o.Mode))
	mux.Handle("/metrics", o.Metrics)
	mux.Handle("/metrics/slis", o.SLIs)
	mux.HandleFunc("/configz", o.configz)
	mux.Handle("/flagz", o.flagz())
	mux.Handle("/statusz", o.statusz())
	if o.Profiling {
		o.profiling(mux)
	}
	return mux
}

// paths are the pages that /statusz names.
func paths() []string { return []string{"/configz", "/flagz", "/healthz", "/metrics", "/proxyMode"} }

func text(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { writeBody(w, typeText, http.StatusOK, []byte(body)) }
}

// healthz reports that this server answers. The health server reports whether the proxy does its work.
func (o Options) healthz(w http.ResponseWriter, r *http.Request) {
	o.Checked()
	body := "ok"
	if r.URL.Query().Has("verbose") {
		body = "[+]ping ok\nhealthz check passed\n"
	}
	text(body)(w, r)
}

func (o Options) configz(w http.ResponseWriter, _ *http.Request) {
	body, err := json.Marshal(map[string]json.RawMessage{"kubeproxy.config.k8s.io": o.Config})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	writeBody(w, typeJSON, http.StatusOK, body)
}

// profiling adds the pages of package pprof. That package puts them on
// http.DefaultServeMux as well, which nothing serves.
func (o Options) profiling(mux *http.ServeMux) {
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("/debug/flags", text("v: PUT a number to /debug/flags/v to set the verbosity of the log\n"))
	mux.HandleFunc("/debug/flags/v", o.verbosity)
}

func (o Options) verbosity(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPut {
		w.Header().Set("Allow", http.MethodPut)
		http.Error(w, "must be PUT", http.StatusMethodNotAllowed)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 64))
	if err != nil {
		http.Error(w, "read body: "+err.Error(), http.StatusBadRequest)
		return
	}
	value := strings.TrimSpace(string(body))
	level, err := strconv.ParseInt(value, 10, 32)
	if err != nil {
		http.Error(w, strconv.Quote(value)+": must be a number, such as 4", http.StatusBadRequest)
		return
	}
	o.SetVerbosity(int(level))
	text("verbosity is "+strconv.FormatInt(level, 10)+"\n")(w, r)
}
