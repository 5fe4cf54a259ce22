package main

import (
	"context"
	"errors"

	"github.com/seed-63e9a637/jetbus/gateway"
	"github.com/seed-63e9a637/jetbus/internal/loopback"
)

// devGateway is where the gateway of dev listens, if nothing else does.
const devGateway = "127.0.0.1:8080"

// gatewayAddress is the address that the flag names, empty where it names none.
func (o devOptions) gatewayAddress() (string, error) {
	if o.gateway == "" {
		return "", nil
	}
	listen := address(o.gateway)
	if err := checkAddress("--gateway", listen); err != nil {
		return "", err
	}
	if !loopback.Address(listen) {
		return "", usagef("--gateway %s: anybody who can reach it could use the bus; name an address of this machine alone, as 127.0.0.1:8080 (jetbus serve takes tokens)", o.gateway)
	}
	return listen, nil
}

// serve starts the gateway: where it is to be, or where dev's gateway is by default, or
// else at a free port.
func (d *devRun) serve(ctx context.Context) error {
	listen, err := d.o.gatewayAddress()
	if err != nil {
		return err
	}
	if listen != "" {
		d.edge, err = startEdge(ctx, d.broker, d.prefix, listen, gateway.Config{}, nil, d.meter, d.log)
		return err
	}
	d.edge, err = startEdge(ctx, d.broker, d.prefix, devGateway, gateway.Config{}, nil, d.meter, d.log)
	if errors.Is(err, errAddressTaken) {
		d.edge, err = startEdge(ctx, d.broker, d.prefix, "127.0.0.1:0", gateway.Config{}, nil, d.meter, d.log)
	}
	return err
}
