package app

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/sluice-proxy/sluice/internal/address"
	"github.com/sluice-proxy/sluice/internal/linux/probe"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/kernelspace"
	"github.com/sluice-proxy/sluice/internal/plane/userspace"
	"github.com/sluice-proxy/sluice/internal/windows/assign"
	"github.com/sluice-proxy/sluice/internal/windows/hns"
)

// interfaceVariable names the interface that gets addresses of Services, as in kube-proxy's mode winuserspace.
const interfaceVariable = "INTERFACE_TO_ADD_SERVICE_IP"

// Kinds returns the data planes of this build, the default first. A further plane is one more line here.
func Kinds() []plane.Kind {
	return []plane.Kind{
		kernelspace.Kind(hns.New(), address.New(address.Options{})),
		userspace.OnServices(assigned),
		userspace.Loopback(),
	}
}

func assigned() (userspace.Assigned, error) {
	a, err := assign.Open(os.Getenv(interfaceVariable))
	switch {
	case errors.Is(err, syscall.ERROR_ACCESS_DENIED):
		return nil, fmt.Errorf("%w: %w: run as an administrator, or with --bind=loopback", probe.ErrPrivilege, err)
	case err != nil:
		return nil, fmt.Errorf("%w: %w", probe.ErrFeature, err)
	}
	return a, nil
}
