package bpf

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/sluice-proxy/sluice/test/lab"
)

// Programs of an earlier run that had another folder for pins, or a bpffs that is gone, do not choose backends any more.
func TestProgramsOfAnotherFolder(t *testing.T) {
	n := newNode(t)
	serve(t, n.opt.NetNS, "127.0.0.1:8080")
	serve(t, n.opt.NetNS, "127.0.0.2:8080")
	n.write(service(vip, 6, OfNode, "127.0.0.1:8080")...)
	n.opt.Dir = filepath.Join(lab.BPFFS(t), "sluice")
	n.conn = n.open()
	n.write(service(vip, 6, OfNode, "127.0.0.2:8080")...)
	n.run(func() error {
		answered, _, err := ask(vip)
		if err == nil && answered != "127.0.0.2:8080" {
			err = fmt.Errorf("%s answers, a backend of the earlier run", answered)
		}
		return err
	})
}
