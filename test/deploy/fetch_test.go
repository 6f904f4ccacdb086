//go:build linux

package deploy

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/sluice-proxy/sluice/test/lab"
)

// fetch gets a page from a server on a host, connecting from that host.
func fetch(from *lab.Host, at netip.AddrPort, path string) ([]byte, error) {
	client := http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
			err = from.Do(func() error {
				conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
				return err
			})
			return conn, err
		},
	}}
	answer, err := client.Get(fmt.Sprintf("http://%s%s", at, path))
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	return io.ReadAll(answer.Body)
}
