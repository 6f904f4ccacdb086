package web

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/pprof"
	"strconv"
	"strings"
	"time"
)

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
