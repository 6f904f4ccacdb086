package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-proxy/sluice/internal/app"
	"github.com/sluice-proxy/sluice/internal/handover"
	"github.com/sluice-proxy/sluice/internal/windows/service"
)

// serviceName is the name of kube-proxy's service.
const serviceName = "kube-proxy"

// asService runs a program as a service of Windows.
func (e Env) asService(ctx context.Context, program service.Program) error {
	err := e.Service(ctx, serviceName, program)
	if errors.Is(err, service.ErrNoManager) {
		return fmt.Errorf("%w: --windows-service (windowsRunAsService) is for a service only, such as one that "+
			`sc.exe create %s binPath= "..." installs; remove it to run Sluice in a terminal`, err, serviceName)
	}
	return err
}

// run serves until the context ends, or until another run of the program is to follow.
func (e Env) run(ctx context.Context, o app.Options) (next *handover.Handover, err error) {
	if e.Service == nil || !o.Config.WindowsService {
		return serve(ctx, o)
	}
	err = e.asService(ctx, func(ctx context.Context) (err error) {
		o.Log.Info("Running as a service of Windows", "name", serviceName)
		next, err = serve(ctx, o)
		if err != nil { // standard error of a service leads nowhere
			o.Log.Error("Ending", "error", err)
		}
		return err
	})
	return next, err
}
