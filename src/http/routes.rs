//! Every route of both listeners. Only routes in these tables are mounted.

use actix_web::http::Method;
use actix_web::http::header::ALLOW;
use actix_web::middleware::from_fn;
use actix_web::web::{self, ServiceConfig};
use actix_web::{HttpRequest, Resource, Route, guard};
use utoipa::OpenApi;

use super::openapi;
use super::openapi::problem_view::ProblemView;
use crate::http::buyers::buy::BUY;
use crate::http::buyers::{
    buy, demo_page, events, mine, orders, payments, requests, sales, storefront, tickets,
};
use crate::http::middleware::problem::{Problem, ProblemCode};
use crate::http::middleware::watch::{trace_of, watch};
use crate::http::operators::{
    audits, bulk, dead_letters, health, ops, order_events, page, payments as admin_payments,
    retention, sale_changes, sales as admin_sales, series, trace, verbs,
};

/// Access control of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteAccess {
    /// No credentials required.
    Open,
    /// Buyer credentials, checked by the handler.
    Buyer,
    /// Operator credentials, checked by `watch`.
    Admin,
}

/// A route of a table.
#[derive(Debug)]
pub struct RouteEntry {
    /// The HTTP method; `GET` answers `HEAD` too.
    pub method: Method,
    /// The path, in the pattern language of actix-web.
    pub path: &'static str,
    pub access: RouteAccess,
    /// Problem codes of this route, besides those of its access kind and those of every route.
    pub refusals: &'static [ProblemCode],
    mount: fn(Route) -> Route,
}

/// Defines the route tables, and of each the OpenAPI document of its handlers' annotations.
macro_rules! tables {
    ($($(#[$doc:meta])* $table:ident described by $described:ident {
        $($method:ident $path:expr, $access:ident => $module:ident::$handler:ident,
            [$($code:ident)*];)+
    })+) => {
        $($(#[$doc])*
        pub const $table: &[RouteEntry] = &[$(RouteEntry {
            method: Method::$method,
            path: $path,
            access: RouteAccess::$access,
            refusals: &[$(ProblemCode::$code),*],
            mount: |route| route.to($module::$handler),
        },)+];

        #[derive(OpenApi)]
        #[openapi(paths($($module::$handler,)+), components(schemas(ProblemView)))]
        pub struct $described;)+
    };
}

tables! {
    /// The public listener: buyers. actix matches the paths in this order, each by a regular
    /// expression: the purchase, the hot path, comes first.
    PUBLIC described by PublicPaths {
        POST BUY, Buyer => buy::buy, [
            InvalidRequest RequestIdInvalid TicketInvalid NotStarted Paused UnknownSku SoldOut
            AlreadyPurchased QuotaExceeded Barred Discarded CancelledByBuyer QueueTimeout Ended
            RequestIdReused RateLimited Busy
        ];
        GET "/v1/sales", Open => sales::list, [InvalidRequest];
        GET "/v1/sales/{sale_id}", Open => sales::show, [UnknownSku Busy];
        GET "/v1/sales/{sale_id}/mine", Buyer => mine::mine, [
            UnknownSku RateLimited Busy
        ];
        POST "/v1/sales/{sale_id}/request-ids", Buyer => requests::create, [
            InvalidRequest UnknownSku Ended RateLimited Busy
        ];
        POST "/v1/sales/{sale_id}/challenges", Buyer => tickets::challenge, [
            InvalidRequest UnknownSku RateLimited Busy
        ];
        POST "/v1/sales/{sale_id}/tickets", Buyer => tickets::ticket, [
            InvalidRequest ChallengeFailed UnknownSku RateLimited Busy
        ];
        GET "/v1/requests/{request_id}", Buyer => requests::show, [NotFound Busy];
        DELETE "/v1/requests/{request_id}", Buyer => requests::cancel, [
            NotFound AlreadyDecided RateLimited Busy
        ];
        GET "/v1/requests/{request_id}/events", Buyer => events::events, [NotFound Busy];
        GET "/v1/orders", Buyer => orders::mine, [InvalidRequest RateLimited Busy];
        DELETE "/v1/orders/{request_id}", Buyer => payments::cancel, [
            NotFound NotPayable RateLimited Busy
        ];
        POST "/v1/orders/{request_id}/payment", Buyer => payments::pay, [
            NotFound NotPayable RateLimited Busy
        ];
        POST "/v1/payments/events", Open => payments::event, [
            InvalidRequest Unauthenticated BodyTooLarge Busy
        ];
        GET "/demo-pay/{payment_id}", Open => demo_page::show, [NotFound];
        POST "/demo-pay/{payment_id}", Open => demo_page::press, [
            InvalidRequest NotFound NotPayable Busy
        ];
        GET "/", Open => storefront::page, [];
        GET "/assets/{version}/{file}", Open => storefront::asset, [NotFound];
        GET "/problems/{code}", Open => storefront::problem, [NotFound];
        GET "/openapi.json", Open => openapi::public_document, [];
        GET "/docs", Open => openapi::to_page, [];
        GET "/docs/{file:.*}", Open => openapi::page, [NotFound];
    }
    /// The internal listener: operators, probes, collectors.
    INTERNAL described by InternalPaths {
        GET "/", Open => page::root, [];
        GET "/ops", Open => page::to_page, [];
        GET "/ops/", Open => page::page, [];
        GET "/ops/assets/{version}/{file}", Open => page::asset, [NotFound];
        GET "/problems/{code}", Open => storefront::problem, [NotFound];
        GET "/assets/{version}/{file}", Open => storefront::asset, [NotFound];
        GET "/openapi.json", Open => openapi::internal_document, [];
        GET "/docs", Open => openapi::to_page, [];
        GET "/docs/{file:.*}", Open => openapi::page, [NotFound];
        GET "/livez", Open => health::live, [];
        GET "/readyz", Open => health::ready, [NotReady];
        GET "/healthz", Open => health::healthz, [NotReady];
        GET "/metrics", Admin => ops::metrics, [];
        GET "/admin/v1/sales", Admin => admin_sales::list, [InvalidRequest];
        POST "/admin/v1/sales", Admin => admin_sales::create, [InvalidRequest SaleExists Busy];
        GET "/admin/v1/sales/{sale_id}", Admin => admin_sales::show, [UnknownSku Busy];
        PATCH "/admin/v1/sales/{sale_id}", Admin => sale_changes::change, [
            InvalidRequest UnknownSku SaleClosed Busy
        ];
        POST "/admin/v1/sales/{sale_id}/skus/{sku_id}/stock", Admin => sale_changes::stock, [
            InvalidRequest UnknownSku SaleClosed ChangeConflict Busy
        ];
        POST "/admin/v1/sales/{sale_id}/open", Admin => admin_sales::open, [
            InvalidRequest UnknownSku PhaseConflict LedgerBehind Busy
        ];
        POST "/admin/v1/sales/{sale_id}/pause", Admin => admin_sales::pause, [
            InvalidRequest UnknownSku PhaseConflict LedgerBehind Busy
        ];
        POST "/admin/v1/sales/{sale_id}/close", Admin => admin_sales::close, [
            InvalidRequest UnknownSku PhaseConflict LedgerBehind Busy
        ];
        POST "/admin/v1/sales/{sale_id}/rebuild", Admin => admin_sales::rebuild, [
            InvalidRequest UnknownSku NoBuckets LedgerBehind Busy
        ];
        GET "/admin/v1/sales/{sale_id}/archive", Admin => retention::open_ends, [
            UnknownSku SalePurged Busy
        ];
        POST "/admin/v1/sales/{sale_id}/archive", Admin => retention::archive, [
            InvalidRequest UnknownSku SaleUnfinished ArchiveDiffers SalePurged Busy
        ];
        GET "/admin/v1/sales/{sale_id}/archive/{table}", Admin => retention::rows, [
            InvalidRequest UnknownSku NotFound SaleUnfinished SalePurged Busy
        ];
        POST "/admin/v1/sales/{sale_id}/purge", Admin => retention::purge, [
            InvalidRequest UnknownSku SaleUnfinished ArchiveDiffers Busy
        ];
        GET "/admin/v1/sales/{sale_id}/funnel", Admin => admin_sales::funnel, [UnknownSku];
        GET "/admin/v1/sales/{sale_id}/buckets", Admin => admin_sales::buckets, [UnknownSku];
        GET "/admin/v1/actors", Admin => ops::actors, [];
        GET "/admin/v1/stats", Admin => ops::stats, [];
        GET "/admin/v1/series", Admin => series::list, [InvalidRequest];
        POST "/admin/v1/audit", Admin => audits::check, [InvalidRequest UnknownSku Busy];
        POST "/admin/v1/audits", Admin => audits::start, [InvalidRequest UnknownSku Busy];
        GET "/admin/v1/audits/{audit_id}", Admin => audits::show, [NotFound];
        GET "/admin/v1/repairs", Admin => audits::repairs, [InvalidRequest Busy];
        GET "/admin/v1/requests/{request_id}/trace", Admin => trace::trace, [
            InvalidRequest NotFound Busy
        ];
        GET "/admin/v1/verbs", Admin => verbs::list, [InvalidRequest Busy];
        GET "/admin/v1/order-events", Admin => order_events::list, [InvalidRequest Busy];
        GET "/admin/v1/payments", Admin => admin_payments::list, [InvalidRequest Busy];
        POST "/admin/v1/payments/{payment}/retry", Admin => admin_payments::retry, [
            InvalidRequest NotFound Busy
        ];
        POST "/admin/v1/payments/{payment}/resolve", Admin => admin_payments::resolve, [
            InvalidRequest NotFound Busy
        ];
        GET "/admin/v1/dead-letters", Admin => dead_letters::list, [
            InvalidRequest UnknownSku Busy
        ];
        POST "/admin/v1/dead-letters/replay", Admin => bulk::replay, [
            InvalidRequest UnknownSku OtherCount Busy
        ];
        POST "/admin/v1/dead-letters/park", Admin => bulk::park, [
            InvalidRequest UnknownSku OtherCount Busy
        ];
        POST "/admin/v1/dead-letters/discard", Admin => bulk::discard, [
            InvalidRequest UnknownSku OtherCount Busy
        ];
        GET "/admin/v1/dead-letters/{dead_letter_id}", Admin => dead_letters::show, [
            UnknownDeadLetter DeadLetterUnreadable Busy
        ];
        POST "/admin/v1/dead-letters/{dead_letter_id}/replay", Admin => dead_letters::replay, [
            InvalidRequest UnknownDeadLetter DeadLetterUnreadable DeadLetterNotReplayable
            DeadLetterConflict NoBroker BrokerAway NotConfirmed Busy
        ];
        POST "/admin/v1/dead-letters/{dead_letter_id}/park", Admin => dead_letters::park, [
            InvalidRequest UnknownDeadLetter DeadLetterUnreadable DeadLetterConflict Busy
        ];
        POST "/admin/v1/dead-letters/{dead_letter_id}/discard", Admin => dead_letters::discard, [
            InvalidRequest UnknownDeadLetter DeadLetterUnreadable DeadLetterNotReplayable
            DeadLetterConflict DeadLetterOrdered Busy
        ];
    }
}

/// Registers the routes of a table.
pub fn mount(table: &'static [RouteEntry], config: &mut ServiceConfig) {
    for (index, entry) in table.iter().enumerate() {
        let (path, access) = (entry.path, entry.access);
        if table.iter().take(index).any(|earlier| earlier.path == path) {
            continue;
        }
        let (resource, others) = resource(table, path);
        let watched = from_fn(move |request, next| watch(path, access, request, next));
        if path == BUY {
            // The hot path: its handler does the work of `watch` itself.
            config.service(resource.default_service(others.wrap(watched)));
        } else {
            config.service(resource.default_service(others).wrap(watched));
        }
    }
}

/// All methods of one path, and 405 for the others.
fn resource(table: &'static [RouteEntry], path: &'static str) -> (Resource, Route) {
    let mut methods = Vec::new();
    let mut resource = web::resource(path);
    for entry in table.iter().filter(|entry| entry.path == path) {
        methods.push(entry.method.as_str());
        let route = if entry.method == Method::GET {
            methods.push("HEAD");
            web::route().guard(guard::Any(guard::Get()).or(guard::Head()))
        } else {
            web::route().method(entry.method.clone())
        };
        resource = resource.route((entry.mount)(route));
    }
    let allow = methods.join(", ");
    let others = web::route().to(move |request: HttpRequest| {
        let refused = Problem::from(ProblemCode::MethodNotAllowed).with_header(ALLOW, &allow);
        std::future::ready(refused.respond(&trace_of(&request)))
    });
    (resource, others)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_one_kind_of_access() {
        for table in [PUBLIC, INTERNAL] {
            for one in table {
                let others = table.iter().filter(|other| other.path == one.path);
                assert!(others.into_iter().all(|other| other.access == one.access), "{}", one.path);
            }
        }
    }

    #[test]
    fn operators_routes_are_on_the_internal_listener_only() {
        assert!(PUBLIC.iter().all(|entry| entry.access != RouteAccess::Admin));
        let open: Vec<_> =
            INTERNAL.iter().filter(|e| e.access != RouteAccess::Admin).map(|e| e.path).collect();
        assert_eq!(
            open,
            [
                "/",
                "/ops",
                "/ops/",
                "/ops/assets/{version}/{file}",
                "/problems/{code}",
                "/assets/{version}/{file}",
                "/openapi.json",
                "/docs",
                "/docs/{file:.*}",
                "/livez",
                "/readyz",
                "/healthz"
            ]
        );
    }
}
