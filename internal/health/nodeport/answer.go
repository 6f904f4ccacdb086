package nodeport

import (
	"context"
	"encoding/json"
	"io"
	"log"
	"net"
	"net/http"
	"strconv"
	"time"
)

// Bounds on what a client can make the server do.
const (
	ioTime      = 5 * time.Second
	headerBytes = 8 << 10
)

// portKey is where the context of a request has its *port.
type portKey struct{}

// newServer returns the server of all ports. Each connection ends after one request, as its port may be closed.
func newServer(live func() bool) *http.Server {
	s := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			p := r.Context().Value(portKey{}).(*port)
			b := body{LocalEndpoints: p.local.Load(), ServiceProxyHealthy: live()}
			b.Service.Namespace, b.Service.Name = p.name.Namespace, p.name.Name
			b.write(w)
		}),
		BaseContext: func(l net.Listener) context.Context {
			return context.WithValue(context.Background(), portKey{}, l.(*listener).port)
		},
		DisableGeneralOptionsHandler: true,
		ReadHeaderTimeout:            ioTime,
		ReadTimeout:                  ioTime,
		WriteTimeout:                 ioTime,
		IdleTimeout:                  ioTime,
		MaxHeaderBytes:               headerBytes,
		ErrorLog:                     log.New(io.Discard, "", 0), // errors of clients
	}
	s.SetKeepAlivesEnabled(false)
	return s
}

// body is the body of answers, which load balancers of some clouds read; others read the status or a header.
type body struct {
	Service struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"service"`
	LocalEndpoints      int64 `json:"localEndpoints"`
	ServiceProxyHealthy bool  `json:"serviceProxyHealthy"`
}

// write answers a request. It ignores whether the node is about to be removed: its endpoints still take traffic.
func (b body) write(w http.ResponseWriter) {
	text, err := json.MarshalIndent(b, "", "\t")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.FormatInt(b.LocalEndpoints, 10))
	if b.LocalEndpoints == 0 || !b.ServiceProxyHealthy {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_, _ = w.Write(text) // fails if the client closed the connection
}
