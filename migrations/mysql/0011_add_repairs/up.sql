-- Adds the changes of each sale's phase, with which an audit knows when a request could be accepted,
-- and the repairs of audits. Each statement can be repeated.
CREATE TABLE IF NOT EXISTS sale_phases (
    sale_no       INTEGER NOT NULL,
    epoch         BIGINT NOT NULL,
    phase         SMALLINT NOT NULL,
    -- Written in the transaction that changes the sale.
    changed_at_ms BIGINT NOT NULL,
    -- When no bucket was in an earlier phase any more; NULL: not known yet.
    applied_at_ms BIGINT,
    PRIMARY KEY (sale_no, epoch, phase),
    CONSTRAINT sale_phases_phase_known CHECK (phase BETWEEN 0 AND 3)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Of earlier changes only the latest opening is known.
INSERT IGNORE INTO sale_phases (sale_no, epoch, phase, changed_at_ms, applied_at_ms)
SELECT sale_no, epoch, 1, opened_at_ms, opened_at_ms FROM sales WHERE epoch > 0 AND opened_at_ms > 0;

CREATE TABLE IF NOT EXISTS repairs (
    repair_no  INTEGER NOT NULL AUTO_INCREMENT PRIMARY KEY,
    sku_no     INTEGER NOT NULL,
    -- NULL: the repair of a count.
    request_id BIGINT,
    -- 1: leak, 2: over_sell, 3: drift.
    verdict    SMALLINT NOT NULL,
    action     VARCHAR(32) NOT NULL,
    -- 1: compensated, 2: failed_final.
    outcome    SMALLINT NOT NULL,
    detail     VARCHAR(1000) NOT NULL,
    at_ms      BIGINT NOT NULL,
    -- Finds a failure that is recorded already.
    KEY repairs_by_sku (sku_no, request_id),
    CONSTRAINT repairs_verdict_known CHECK (verdict BETWEEN 1 AND 3),
    CONSTRAINT repairs_outcome_known CHECK (outcome BETWEEN 1 AND 2)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
